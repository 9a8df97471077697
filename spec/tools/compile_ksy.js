// Compiles a Kaitai Struct file, given as JSON on stdin, and prints {file: text} as JSON.
const compiler = require("kaitai-struct-compiler");
const source = JSON.parse(require("fs").readFileSync(0, "utf8"));

compiler.compile(process.argv[2], source, null, false).then(
  (files) => process.stdout.write(JSON.stringify(files)),
  (error) => {
    process.stderr.write(`${error.message || error}\n`);
    process.exitCode = 1;
  },
);
