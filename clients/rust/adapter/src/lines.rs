//! The lines of the adapter protocol.

use std::collections::HashMap;

/// One item of a value.
#[derive(Debug, Clone)]
pub enum Item {
    Number(i128),
    Bytes(Vec<u8>),
    Word(String),
}

/// What a request gives, by name.
pub struct Fields(HashMap<String, Vec<Item>>);

impl Fields {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn items(&self, name: &str) -> &[Item] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        match self.items(name) {
            [Item::Number(number)] => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub fn flag(&self, name: &str) -> bool {
        self.number(name) == Some(1)
    }

    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        match self.items(name) {
            [Item::Bytes(bytes)] => Some(bytes.clone()),
            _ => None,
        }
    }

    /// All items of a field that are bytes.
    pub fn list(&self, name: &str) -> Vec<Vec<u8>> {
        self.items(name)
            .iter()
            .filter_map(|item| match item {
                Item::Bytes(bytes) => Some(bytes.clone()),
                Item::Number(_) | Item::Word(_) => None,
            })
            .collect()
    }

    /// Bytes as text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.bytes(name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn word(&self, name: &str) -> String {
        match self.items(name) {
            [Item::Word(word)] => word.clone(),
            [Item::Number(number)] => number.to_string(),
            _ => String::new(),
        }
    }
}

/// What a request is answered with.
#[derive(Debug, Clone)]
pub struct Answer {
    status: &'static str,
    fields: Vec<(String, Shown)>,
}

/// A value of an answer.
#[derive(Debug, Clone)]
pub enum Shown {
    Number(u64),
    Bytes(Vec<u8>),
    List(Vec<Vec<u8>>),
    Word(String),
}

impl From<u64> for Shown {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<Vec<u8>> for Shown {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<Vec<u8>>> for Shown {
    fn from(list: Vec<Vec<u8>>) -> Self {
        Self::List(list)
    }
}

impl From<String> for Shown {
    fn from(word: String) -> Self {
        Self::Word(word)
    }
}

impl From<&str> for Shown {
    fn from(word: &str) -> Self {
        Self::Word(word.to_owned())
    }
}

impl Answer {
    fn new(status: &'static str) -> Self {
        Self { status, fields: Vec::new() }
    }

    pub fn ok() -> Self {
        Self::new("ok")
    }

    pub fn unsupported() -> Self {
        Self::new("unsupported")
    }

    pub fn err(kind: &str) -> Self {
        Self::new("err").with("kind", kind)
    }

    pub fn fail(text: &str) -> Self {
        Self::new("fail").with("text", text.as_bytes().to_vec())
    }

    pub fn with(mut self, name: &str, value: impl Into<Shown>) -> Self {
        self.fields.push((name.to_owned(), value.into()));
        self
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("x:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

pub fn show(answer: &Answer) -> String {
    let mut line = answer.status.to_owned();
    for (name, value) in &answer.fields {
        let value = match value {
            Shown::Number(number) => number.to_string(),
            Shown::Bytes(bytes) => hex(bytes),
            Shown::List(list) => list.iter().map(|bytes| hex(bytes)).collect::<Vec<_>>().join(","),
            Shown::Word(word) => word.clone(),
        };
        line += &format!(" {name}={value}");
    }
    line
}

/// Number, verb and fields of a request.
pub fn parse(line: &str) -> (String, String, Result<Fields, String>) {
    let mut words = line.split(' ');
    let number = words.next().unwrap_or_default().to_owned();
    let verb = words.next().unwrap_or_default().to_owned();
    let fields = words.map(parse_field).collect::<Result<HashMap<_, _>, _>>();
    (number, verb, fields.map(Fields))
}

fn parse_field(word: &str) -> Result<(String, Vec<Item>), String> {
    let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is no name=value"))?;
    let items = value.split(',').filter(|_| !value.is_empty()).map(parse_item).collect::<Result<_, _>>()?;
    Ok((name.to_owned(), items))
}

fn parse_item(text: &str) -> Result<Item, String> {
    let wrong = || format!("{text:?} is no value");
    if let Some(digits) = text.strip_prefix("x:") {
        return from_hex(digits).map(Item::Bytes).ok_or_else(wrong);
    }
    if let Some(run) = text.strip_prefix("r:") {
        let (digits, times) = run.split_once('*').ok_or_else(wrong)?;
        let byte = from_hex(digits).ok_or_else(wrong)?;
        return times.parse().map(|times| Item::Bytes(byte.repeat(times))).map_err(|_| wrong());
    }
    Ok(text.parse().map_or_else(|_| Item::Word(text.to_owned()), Item::Number))
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok().filter(|_| pair.len() == 2)).collect()
}
