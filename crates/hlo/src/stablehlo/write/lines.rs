//! The text of a module, line by line.

use std::fmt::{Display, Write};

use super::attributes::{Attributes, symbol};
use super::error::Result;
use super::literal::Dense;
use super::printer::{Leaf, Op, Signature, Sink};
use super::types::Type;

/// A text under construction.
#[derive(Default)]
pub(super) struct Lines {
    text: String,
    indent: usize,
}

impl Lines {
    pub(super) fn finish(mut self) -> String {
        self.text.push_str("}\n");
        self.text
    }

    fn start_line(&mut self) {
        for _ in 0..self.indent {
            self.text.push_str("  ");
        }
    }

    /// Ends a line that says what an instruction does.
    fn end_line(&mut self, location: &str) {
        if !location.is_empty() {
            self.text.extend([" ", location]);
        }
        self.text.push('\n');
    }

    fn add(&mut self, part: impl Display) {
        // Writing into a string does not fail.
        let _ = write!(self.text, "{part}");
    }

    fn separated(&mut self, parts: impl IntoIterator<Item = impl Display>) {
        for (number, part) in parts.into_iter().enumerate() {
            self.text.push_str(if number > 0 { ", " } else { "" });
            self.add(part);
        }
    }

    /// `%1, %2`.
    fn names(&mut self, leaves: &[Leaf]) {
        self.separated(leaves.iter().map(|leaf| leaf.name));
    }

    /// `{name = value, flag}`: an attribute without value is a flag.
    fn braced(&mut self, attributes: &Attributes) {
        self.text.push('{');
        for (number, (name, value)) in attributes.iter().enumerate() {
            self.text.extend([if number > 0 { ", " } else { "" }, name]);
            if !value.is_empty() {
                self.text.extend([" = ", value]);
            }
        }
        self.text.push('}');
    }

    /// Attributes after something, if there are some.
    fn trailing(&mut self, attributes: &Attributes) {
        if !attributes.is_empty() {
            self.text.push(' ');
            self.braced(attributes);
        }
    }
}

impl Sink for Lines {
    fn open_module(&mut self, name: &str, attributes: &Attributes) -> Result<()> {
        self.text.push_str("module");
        if !name.is_empty() {
            self.text.extend([" ", &symbol(name)]);
        }
        self.text.push_str(" attributes ");
        self.braced(attributes);
        self.text.push_str(" {\n");
        Ok(())
    }

    fn open_function(&mut self, signature: &Signature) -> Result<()> {
        self.indent = 1;
        self.start_line();
        let visibility = if signature.is_public { "public" } else { "private" };
        self.add(format_args!("func.func {visibility} {}(", symbol(&signature.name)));
        for (number, (leaf, attributes, location)) in signature.arguments.iter().enumerate() {
            self.text.push_str(if number > 0 { ", " } else { "" });
            self.add(format_args!("{}: {}", leaf.name, leaf.ty));
            self.trailing(attributes);
            if !location.is_empty() {
                self.text.extend([" ", location]);
            }
        }
        self.text.push_str(") -> (");
        for (number, (ty, attributes)) in signature.results.iter().enumerate() {
            self.text.extend([if number > 0 { ", " } else { "" }, ty]);
            self.trailing(attributes);
        }
        self.text.push_str(") {\n");
        self.indent = 2;
        Ok(())
    }

    fn open(&mut self, op: &Op<'_>, results: &[Leaf]) -> Result<()> {
        self.start_line();
        match results {
            [] => {}
            [leaf] => self.add(format_args!("{} = ", leaf.name)),
            [first, ..] => self.add(format_args!("{}:{} = ", first.name.of_all(), results.len())),
        }
        match op.attributes.as_slice() {
            [(_, callee)] if op.name == "func.call" => self.text.extend(["call ", callee, "("]),
            _ if op.only_type().is_some() => self.text.extend([op.name, " "]),
            _ => self.text.extend(["\"", op.name, "\"("]),
        }
        self.names(op.operands);
        if op.only_type().is_none() {
            self.text.push(')');
            if !op.attributes.is_empty() && op.name != "func.call" {
                self.text.push_str(" <");
                self.braced(&op.attributes);
                self.text.push('>');
            }
        }
        Ok(())
    }

    fn open_region(&mut self, number: usize, arguments: Option<&[Leaf]>) -> Result<()> {
        self.text.push_str(if number == 0 { " ({\n" } else { ", {\n" });
        if let Some(arguments) = arguments {
            self.start_line();
            self.text.push_str("^bb0(");
            for (number, leaf) in arguments.iter().enumerate() {
                self.text.push_str(if number > 0 { ", " } else { "" });
                self.add(format_args!("{}: {}", leaf.name, leaf.ty));
            }
            self.text.push_str("):\n");
        }
        self.indent += 1;
        Ok(())
    }

    fn close_region(&mut self, values: &[Leaf], is_function: bool) -> Result<()> {
        self.start_line();
        self.text.push_str(if is_function { "return" } else { "stablehlo.return" });
        if !values.is_empty() {
            self.text.push(' ');
            self.names(values);
            self.text.push_str(" : ");
            self.separated(values.iter().map(|leaf| &leaf.ty));
        }
        self.text.push('\n');
        self.indent -= 1;
        self.start_line();
        self.text.push_str(if is_function { "}\n" } else { "}" });
        Ok(())
    }

    fn close(&mut self, op: &Op<'_>, location: &str) -> Result<()> {
        match op.only_type() {
            Some(ty) => self.text.extend([" : ", ty]),
            None => {
                if !op.regions.is_empty() {
                    self.text.push(')');
                }
                self.trailing(&op.discardable);
                self.text.push_str(" : (");
                self.separated(op.operands.iter().map(|leaf| &leaf.ty));
                self.text.push_str(") -> ");
                result_types(self, op.results);
            }
        }
        self.end_line(location);
        Ok(())
    }

    fn constant(&mut self, value: &Dense, result: &Leaf, location: &str) -> Result<()> {
        self.start_line();
        self.add(format_args!("{} = stablehlo.constant {value}", result.name));
        self.end_line(location);
        Ok(())
    }

    fn length(&self) -> usize {
        self.text.len()
    }
}

/// One type, or several in brackets.
fn result_types(lines: &mut Lines, types: &[Type]) {
    match types {
        [one] => lines.add(one),
        several => {
            lines.text.push('(');
            lines.separated(several);
            lines.text.push(')');
        }
    }
}
