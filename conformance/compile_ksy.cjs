// Compiles a Kaitai description to Python: node compile_ksy.cjs FILE.ksy FOLDER
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const yaml = require("js-yaml");
const compiler = require("kaitai-struct-compiler");

const [source, folder] = process.argv.slice(2);
const description = yaml.load(fs.readFileSync(source, "utf8"));
compiler
  .compile("python", description, null, false)
  .then((files) => {
    for (const [name, text] of Object.entries(files)) {
      fs.writeFileSync(path.join(folder, name), text);
    }
  })
  .catch((error) => {
    console.error(String(error));
    process.exitCode = 1;
  });
