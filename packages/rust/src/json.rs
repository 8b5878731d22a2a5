//! JSON, as far as the test control needs it.

use std::fmt;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// null
    Null,
    /// true or false
    Flag(bool),
    /// A number without a fraction.
    Number(i64),
    /// Another number.
    Float(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object, in the order of its text.
    Object(Vec<(String, Json)>),
}

static NULL: Json = Json::Null;

impl Json {
    /// The value with this name in an object, or null.
    pub fn get(&self, name: &str) -> &Json {
        match self {
            Json::Object(all) => all.iter().find(|(key, _)| key == name).map_or(&NULL, |(_, value)| value),
            _ => &NULL,
        }
    }

    /// The elements of an array; none of anything else.
    pub fn list(&self) -> &[Json] {
        match self {
            Json::List(all) => all,
            _ => &[],
        }
    }

    /// A string, or "".
    pub fn text(&self) -> &str {
        match self {
            Json::Text(text) => text,
            _ => "",
        }
    }

    /// A number, or 0.
    pub fn number(&self) -> i64 {
        match self {
            Json::Number(number) => *number,
            _ => 0,
        }
    }

    /// Whether it is true.
    pub fn flag(&self) -> bool {
        *self == Json::Flag(true)
    }

    /// The id of a session, which is a string such as "0x1000a01c3e20000", or 0.
    pub(crate) fn session(&self) -> i64 {
        u64::from_str_radix(self.text().trim_start_matches("0x"), 16).map_or(0, |id| id as i64)
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        self.list().iter().map(|text| text.text().to_string()).collect()
    }

    pub(crate) fn sessions(&self) -> Vec<i64> {
        self.list().iter().map(Json::session).collect()
    }

    /// Reads a text, which must have nothing else in it.
    pub fn read(text: &str) -> Result<Json, String> {
        let mut reader = Reader { rest: text, depth: 0 };
        let value = reader.value()?;
        reader.space();
        if reader.rest.is_empty() {
            Ok(value)
        } else {
            Err(reader.wrong())
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::Text(text.to_string())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Text(text)
    }
}

impl From<i64> for Json {
    fn from(number: i64) -> Json {
        Json::Number(number)
    }
}

impl From<bool> for Json {
    fn from(flag: bool) -> Json {
        Json::Flag(flag)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Flag(flag) => write!(f, "{flag}"),
            Json::Number(number) => write!(f, "{number}"),
            Json::Float(number) => write!(f, "{number:?}"),
            Json::Text(text) => quote(f, text),
            Json::List(all) => {
                f.write_str("[")?;
                for (i, value) in all.iter().enumerate() {
                    write!(f, "{}{value}", if i > 0 { "," } else { "" })?;
                }
                f.write_str("]")
            }
            Json::Object(all) => {
                f.write_str("{")?;
                for (i, (name, value)) in all.iter().enumerate() {
                    f.write_str(if i > 0 { "," } else { "" })?;
                    quote(f, name)?;
                    write!(f, ":{value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quote(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            c if c < ' ' => write!(f, "\\u{:04x}", c as u32)?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

const DEEPEST: usize = 100;

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn wrong(&self) -> String {
        format!("not JSON: {:.40}", self.rest)
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    /// Skips a text, if it is the next one.
    fn skip(&mut self, text: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        if self.skip(text) {
            Ok(())
        } else {
            Err(self.wrong())
        }
    }

    fn value(&mut self) -> Result<Json, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.wrong());
        }
        let value = if self.skip("{") {
            self.object()
        } else if self.skip("[") {
            self.array()
        } else if self.skip("\"") {
            self.string().map(Json::Text)
        } else {
            self.word()
        };
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Result<Json, String> {
        let mut all = Vec::new();
        if self.skip("}") {
            return Ok(Json::Object(all));
        }
        loop {
            self.expect("\"")?;
            let name = self.string()?;
            self.expect(":")?;
            all.push((name, self.value()?));
            if !self.skip(",") {
                break;
            }
        }
        self.expect("}")?;
        Ok(Json::Object(all))
    }

    fn array(&mut self) -> Result<Json, String> {
        let mut all = Vec::new();
        if self.skip("]") {
            return Ok(Json::List(all));
        }
        loop {
            all.push(self.value()?);
            if !self.skip(",") {
                break;
            }
        }
        self.expect("]")?;
        Ok(Json::List(all))
    }

    /// Reads a string, whose first quote has been read.
    fn string(&mut self) -> Result<String, String> {
        let mut text = String::new();
        let mut chars = self.rest.chars();
        loop {
            match chars.next().ok_or("not JSON: a string without an end")? {
                '"' => break,
                '\\' => match chars.next() {
                    Some('b') => text.push('\u{8}'),
                    Some('f') => text.push('\u{c}'),
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some('t') => text.push('\t'),
                    Some(c @ ('"' | '\\' | '/')) => text.push(c),
                    Some('u') => {
                        let mut units = vec![unit(&mut chars)?];
                        // The second half of a character outside of the first plane.
                        if (0xd800..0xdc00).contains(&units[0]) && chars.as_str().starts_with("\\u") {
                            chars.nth(1);
                            units.push(unit(&mut chars)?);
                        }
                        text.push_str(&String::from_utf16_lossy(&units));
                    }
                    _ => return Err(self.wrong()),
                },
                c => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Ok(text)
    }

    fn word(&mut self) -> Result<Json, String> {
        self.space();
        let end = self.rest.find([',', ']', '}', ' ', '\t', '\r', '\n']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let value = match word {
            "null" => Json::Null,
            "true" => Json::Flag(true),
            "false" => Json::Flag(false),
            _ if !word.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => return Err(self.wrong()),
            _ => match word.parse() {
                Ok(number) => Json::Number(number),
                Err(_) => Json::Float(word.parse().map_err(|_| self.wrong())?),
            },
        };
        self.rest = rest;
        Ok(value)
    }
}

/// Reads the four digits of a \u.
fn unit(chars: &mut std::str::Chars<'_>) -> Result<u16, String> {
    let digits = chars.as_str().get(..4).ok_or("not JSON: \\u without four digits")?;
    let unit = u16::from_str_radix(digits, 16).map_err(|_| format!("not JSON: \\u{digits}"))?;
    chars.nth(3);
    Ok(unit)
}

#[cfg(test)]
mod tests {
    use super::Json;

    #[test]
    fn reads_what_it_writes() {
        let value = Json::Object(vec![
            ("text".into(), "a\"\\\n\u{1}é😀/".into()),
            ("numbers".into(), Json::List(vec![0.into(), (-1).into(), i64::MAX.into(), Json::Float(0.25)])),
            ("words".into(), Json::List(vec![true.into(), false.into(), Json::Null])),
            ("empty".into(), Json::List(vec![Json::Object(vec![]), Json::List(vec![]), "".into()])),
        ]);
        assert_eq!(Json::read(&value.to_string()), Ok(value));
    }

    #[test]
    fn reads_other_writings() {
        let value = Json::read(" { \"a\" : [ \"\\u00e9\\b\\f\\r\\t\\/\\ud83d\\ude00\" , 1e3 ] } ").unwrap();
        assert_eq!(value.get("a").list(), ["é\u{8}\u{c}\r\t/😀".into(), Json::Float(1000.0)]);
        assert_eq!(*value.get("b"), Json::Null);
    }

    #[test]
    fn refuses_what_is_not_json() {
        for text in ["", "{", "[1", "\"a", "\"\\x\"", "\"\\u12\"", "{\"a\"}", "{a:1}", "[1 2]", "nul", "1 2", "inf", &"[".repeat(10_000)] {
            assert!(Json::read(text).is_err(), "{text}");
        }
    }
}
