// SPDX-License-Identifier: Apache-2.0
//! Environment files, read the way systemd reads `EnvironmentFile=`, but with line numbers and without forgiveness.
//!
//! systemd skips a line that it does not understand; here that is an error, because a setting that is silently not
//! there is worse than a service that says why it will not start.

/// One assignment of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Line number of the key, from 1.
    pub line: usize,
    /// Name, a C identifier.
    pub key: String,
    /// Value with quotes, escapes and continuations resolved.
    pub value: String,
}

/// A line that is not an assignment.
#[derive(Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Line number, from 1.
    pub line: usize,
    /// What stands there (shortened) or what is missing.
    pub found: String,
}

/// All assignments of `text` in order; every line that is neither that, a comment, nor empty is in the error list.
pub fn parse(text: &str) -> (Vec<Line>, Vec<BadLine>) {
    let mut cursor = Cursor { rest: text.chars().peekable(), line: 1 };
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    while let Some(first) = cursor.skip_blank() {
        let line = cursor.line;
        if first == '#' || first == ';' {
            cursor.comment();
            continue;
        }
        match cursor.assignment() {
            Ok((key, value)) => good.push(Line { line, key, value }),
            Err(found) => bad.push(BadLine { line, found }),
        }
    }
    (good, bad)
}

struct Cursor<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: usize,
}

impl Cursor<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.next();
        self.line += usize::from(c == Some('\n'));
        c
    }

    /// Skips white space and line ends, returns the first other character without taking it.
    fn skip_blank(&mut self) -> Option<char> {
        while self.rest.next_if(|c| c.is_whitespace() && *c != '\n').is_some()
            || self.rest.peek() == Some(&'\n')
        {
            if self.rest.peek() == Some(&'\n') {
                self.next();
            }
        }
        self.rest.peek().copied()
    }

    /// A comment ends with its line; as in systemd a backslash carries it on to the next one.
    fn comment(&mut self) {
        while let Some(c) = self.next() {
            match c {
                '\\' => drop(self.next()),
                '\n' => break,
                _ => {}
            }
        }
    }

    fn rest_of_line(&mut self) -> String {
        let mut text = String::new();
        while let Some(c) = self.next() {
            if c == '\n' {
                break;
            }
            text.push(c);
        }
        text
    }

    fn assignment(&mut self) -> Result<(String, String), String> {
        let mut key = String::new();
        while let Some(c) = self.rest.next_if(|c| *c != '=' && *c != '\n') {
            key.push(c);
        }
        let name = key.trim_end();
        if self.rest.next_if_eq(&'=').is_none() {
            self.next();
            return Err(format!("{:?}, no '=' in the line", short(name)));
        }
        if !is_name(name) {
            self.rest_of_line();
            return Err(format!("{:?} before the '='", short(name)));
        }
        Ok((name.to_owned(), self.value()?))
    }

    fn value(&mut self) -> Result<String, String> {
        let mut value = String::new();
        // Everything up to here is kept even when it is white space, because it was quoted or escaped.
        let mut kept = 0;
        let mut may_quote = true;
        while let Some(c) = self.next() {
            match c {
                '\n' => break,
                '\'' | '"' if may_quote => {
                    self.quoted(c, &mut value)?;
                    kept = value.len();
                }
                '\\' => {
                    if let Some(escaped) = self.next().filter(|c| *c != '\n') {
                        value.push(escaped);
                        kept = value.len();
                    }
                    may_quote = false;
                }
                // Before a value, and between quoted parts, white space means nothing.
                c if c.is_whitespace() && may_quote => {}
                c => {
                    value.push(c);
                    may_quote = false;
                }
            }
        }
        let trimmed = value.trim_end().len().max(kept);
        value.truncate(trimmed);
        Ok(value)
    }

    fn quoted(&mut self, quote: char, value: &mut String) -> Result<(), String> {
        while let Some(c) = self.next() {
            match c {
                c if c == quote => return Ok(()),
                '\\' if quote == '"' => match self.next() {
                    Some('\n') => {}
                    Some(e @ ('"' | '\\' | '`' | '$')) => value.push(e),
                    Some(other) => value.extend(['\\', other]),
                    None => break,
                },
                c => value.push(c),
            }
        }
        Err(format!("a value whose {quote} is never closed"))
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> String {
        let (good, bad) = parse(text);
        assert_eq!(bad, []);
        assert_eq!(good.len(), 1, "{good:?}");
        good.into_iter().next().map(|line| line.value).unwrap_or_default()
    }

    #[test]
    fn values_as_systemd_reads_them() {
        for (text, wanted) in [
            ("A=1", "1"),
            ("A = 1 \n", "1"),
            ("  A=a b  ", "a b"),
            ("A=", ""),
            ("A='a b '", "a b "),
            ("A=\"a # b\"", "a # b"),
            ("A=\"a\\\"b\\$c\\d\"", "a\"b$c\\d"),
            ("A=a\\\nb", "ab"),
            ("A='a\nb'", "a\nb"),
            ("A=a#b", "a#b"),
            ("A=a=b", "a=b"),
            ("A=a\\ ", "a "),
            ("A='x' \"y\"", "xy"),
            ("A=it's", "it's"),
        ] {
            assert_eq!(value(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn line_numbers_survive_comments_and_continuations() {
        let (good, bad) = parse("# one\n\n; three\nA='x\ny'\nB=2\nexport C\n1D=3\nE=5");
        let seen: Vec<_> = good.iter().map(|line| (line.line, line.key.as_str())).collect();
        assert_eq!(seen, [(4, "A"), (6, "B"), (9, "E")]);
        assert_eq!(bad.iter().map(|line| line.line).collect::<Vec<_>>(), [7, 8]);
    }

    #[test]
    fn an_open_quote_is_refused() {
        let (good, bad) = parse("A=\"abc\nB=1\n");
        assert_eq!(good, []);
        assert_eq!(bad, [BadLine { line: 1, found: "a value whose \" is never closed".into() }]);
    }
}
