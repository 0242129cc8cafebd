//! How Shardy encodes its attributes. One in another stands there without its name, as MLIR prints it.

use super::bytes::Bytes;
use super::texts::Encoding::{self, Own, Text};
use super::texts::Texts;
use crate::parse::Result;

/// By the numbers of their kinds, each without its name.
pub(super) const ATTRIBUTES: &[Encoding] = &[
    Own(manual_axes),
    Text("%s=%i"),
    Own(mesh),
    Text("(%i)%i"),
    Own(axis),
    Own(dimension),
    Own(|texts, bytes| sharding(texts, bytes, 1)),
    Own(per_value),
    Own(factors),
    Own(|texts, bytes| bracketed(texts, bytes, ["[", "]"])),
    Own(rule),
    Own(|texts, bytes| bracketed(texts, bytes, ["{", "}"])),
    Own(|texts, bytes| bracketed(texts, bytes, ["[", "]"])),
    Own(exchange),
    Own(|texts, bytes| bracketed(texts, bytes, ["[", "]"])),
    Own(|texts, bytes| sharding(texts, bytes, 2)),
    Own(per_value),
    Own(|texts, bytes| sharding(texts, bytes, 3)),
];

/// The text around an attribute of a kind where it stands alone.
pub(super) fn around(code: u64) -> (&'static str, &'static str) {
    match code {
        0 => ("#sdy<manual_axes", ">"),
        1 => ("#sdy.mesh_axis<", ">"),
        2 => ("#sdy.mesh", ""),
        3 => ("#sdy.sub_axis_info<", ">"),
        4 => ("#sdy.axis_ref<", ">"),
        5 => ("#sdy.dimension_sharding<", ">"),
        6 | 15 | 17 => ("#sdy.sharding", ""),
        7 | 16 => ("#sdy.sharding_per_value", ""),
        8 => ("#sdy.dim_mapping<", ">"),
        9 => ("#sdy.tensor_mapping<", ">"),
        10 => ("#sdy.op_sharding_rule", ""),
        11 => ("#sdy<axis_ref_list", ">"),
        12 => ("#sdy<list_of_axis_ref_lists", ">"),
        13 => ("#sdy.all_to_all_param<", ">"),
        _ => ("#sdy<all_to_all_param_list", ">"),
    }
}

/// Attributes of the same dialect, with commas between them.
fn several<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>, separator: &str) -> Result<()> {
    texts.items(bytes, separator, |texts, bytes| {
        let index = bytes.index()?;
        texts.write_stripped(index, bytes.here())
    })
}

fn bracketed<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>, [open, close]: [&str; 2]) -> Result<()> {
    texts.text.push_str(open);
    several(texts, bytes, ", ")?;
    texts.text.push_str(close);
    Ok(())
}

/// `{"data", "fsdp"}`
fn manual_axes<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.expand("{%A}", bytes)
}

/// `<["data"=2, "fsdp"=4], device_ids=[1, 0]>`
fn mesh<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.text.push('<');
    bracketed(texts, bytes, ["[", "]"])?;
    let devices = bytes.signed_list()?;
    if !devices.is_empty() {
        texts.text.push_str(", device_ids=[");
        texts.separated(&devices, ", ");
        texts.text.push(']');
    }
    texts.text.push('>');
    Ok(())
}

/// `"data":(1)2`
fn axis<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.expand("%s", bytes)?;
    match bytes.flagged()? {
        (index, true) => {
            texts.text.push(':');
            texts.write_stripped(u32::try_from(index).unwrap_or(u32::MAX), bytes.here())
        }
        (_, false) => Ok(()),
    }
}

/// `{"data", ?}p1`
fn dimension<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let start = texts.text.len();
    texts.text.push('{');
    several(texts, bytes, ", ")?;
    let is_empty = texts.text.len() == start + 1;
    if bytes.byte()? == 0 {
        texts.text.push_str(if is_empty { "?" } else { ", ?" });
    }
    texts.text.push('}');
    if let (priority, true) = bytes.flagged()? {
        texts.text.push('p');
        texts.display(priority);
    }
    Ok(())
}

/// `<@mesh, [{"data"}, {}], replicated={"x"}, unreduced={"y"}>`; the versions differ in what stands at the end.
fn sharding<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>, version: u32) -> Result<()> {
    texts.text.push('<');
    let mesh = bytes.index()?;
    let is_inline = texts.attribute_entry(mesh, bytes.here())?.dialect == "sdy";
    match is_inline {
        true => {
            texts.text.push_str("mesh");
            texts.write_stripped(mesh, bytes.here())?;
        }
        false => texts.write_attribute(mesh, bytes.here())?,
    }
    texts.text.push_str(", ");
    bracketed(texts, bytes, ["[", "]"])?;
    named_axes(texts, bytes, ", replicated={")?;
    if version > 1 {
        let start = texts.text.len();
        named_axes(texts, bytes, ", unreduced={")?;
        if version > 2 {
            let reduction = ["", "max", "min"].get(bytes.signed()? as usize).copied().unwrap_or_default();
            let at = start + ", unreduced=".len();
            if at <= texts.text.len() {
                texts.text.insert_str(at, reduction);
            }
        }
    }
    texts.text.push('>');
    Ok(())
}

/// A list of axes, if there are any.
fn named_axes<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>, before: &str) -> Result<()> {
    let mut ahead = *bytes;
    if ahead.count()? == 0 {
        *bytes = ahead;
        return Ok(());
    }
    bracketed(texts, bytes, [before, "}"])
}

/// `<[<@mesh, [{"data"}]>, <@mesh, [{}]>]>`
fn per_value<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    bracketed(texts, bytes, ["<[", "]>"])
}

/// `ij`: factors of a dimension.
fn factors<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    bytes.signed_list()?.into_iter().for_each(|factor| write_factor(texts, factor));
    Ok(())
}

/// The letters from `i` on, then `z_1`, `z_2`.
fn write_factor(texts: &mut Texts<'_, '_>, factor: i64) {
    const LAST: i64 = (b'z' - b'i') as i64;
    match u8::try_from(factor) {
        Ok(small) if factor <= LAST => texts.text.push(char::from(b'i' + small)),
        _ => {
            texts.text.push_str("z_");
            texts.display(factor.wrapping_sub(LAST));
        }
    }
}

/// `<([i, k], [k, j])->([i, j]) {i=8, j=4, k=2} reduction={k}, custom>`
fn rule<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let sizes = bytes.signed_list()?;
    for brackets in [["<(", ")"], ["->(", ")"]] {
        bracketed(texts, bytes, brackets)?;
    }
    if !sizes.is_empty() {
        texts.text.push_str(" {");
        for (factor, size) in sizes.iter().enumerate() {
            texts.text.push_str(if factor > 0 { ", " } else { "" });
            write_factor(texts, factor as i64);
            texts.text.push('=');
            texts.display(size);
        }
        texts.text.push('}');
    }
    for kind in ["reduction", "need_replication", "permutation", "blocked_propagation"] {
        let factors = bytes.signed_list()?;
        for (number, factor) in factors.iter().enumerate() {
            match number {
                0 => texts.text.extend([" ", kind, "={"]),
                _ => texts.text.push_str(", "),
            }
            write_factor(texts, *factor);
        }
        if !factors.is_empty() {
            texts.text.push('}');
        }
    }
    texts.text.push_str(if bytes.byte()? != 0 { ", custom>" } else { ">" });
    Ok(())
}

/// `{"x"}:0->1`
fn exchange<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    bracketed(texts, bytes, ["{", "}"])?;
    texts.expand(":%i->%i", bytes)
}
