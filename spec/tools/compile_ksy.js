// node compile_ksy.js FILE.ksy LANGUAGE: compiles and prints {file: text} as JSON.
const fs = require("fs");
const yaml = require("js-yaml");
const compiler = require("kaitai-struct-compiler");

const [source, language] = process.argv.slice(2);
const description = yaml.load(fs.readFileSync(source, "utf8"));

compiler.compile(language, description, null, false).then(
  (files) => process.stdout.write(JSON.stringify(files)),
  (error) => {
    process.stderr.write(`${error.message || error}\n`);
    process.exitCode = 1;
  },
);
