//! HLO text as a page: names lead to where they are defined, and light up wherever they are.

use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

pub fn render(title: &str, text: &str) -> String {
    let mut page = String::with_capacity(3 * text.len());
    let title = escaped(title);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n<style>{STYLE}</style></head>\n\
         <body><header><h1>{title}</h1><input id=\"find\" type=\"search\" placeholder=\"show lines with ...\"></header>\n<main>"
    );
    for line in text.lines() {
        let class = if is_collective(line) { " class=\"moves\"" } else { "" };
        let _ = writeln!(page, "<div{class}>{}</div>", linked(line));
    }
    let _ = write!(page, "</main>\n<script>{SCRIPT}</script></body></html>\n");
    page
}

fn is_collective(line: &str) -> bool {
    ["all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"]
        .iter()
        .any(|kind| line.contains(&format!(" {kind}(")) || line.contains(&format!(" {kind}-start(")))
}

/// A line in which the name that it defines is an anchor, and other names lead to theirs.
fn linked(line: &str) -> String {
    let mut out = String::with_capacity(2 * line.len());
    let mut first = true;
    let mut rest = line;
    while let Some(at) = rest.find('%') {
        out.push_str(&escaped(&rest[..at]));
        let name = &rest[at..];
        let end =
            name[1..].find(|c: char| !(c.is_alphanumeric() || "._-".contains(c))).map_or(name.len(), |end| end + 1);
        let (name, after) = name.split_at(end);
        let key = escaped(&name[1..]);
        let defines = first && (after.starts_with(" =") || after.starts_with(" ("));
        match (name.len() > 1, defines) {
            (false, _) => out.push('%'),
            (true, true) => {
                let _ = write!(out, "<a id=\"{key}\" class=\"def\">{}</a>", escaped(name));
            }
            (true, false) => {
                let _ = write!(out, "<a href=\"#{key}\">{}</a>", escaped(name));
            }
        }
        first = false;
        rest = after;
    }
    out.push_str(&escaped(rest));
    if out.is_empty() { "&nbsp;".to_owned() } else { out }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
