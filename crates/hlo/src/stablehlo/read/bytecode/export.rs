//! The file that `jax.export` serializes: a flatbuffer, one of whose fields is a module as bytecode.

use super::MAGIC;

/// The number of the field that has the module, in the table of an export.
const MODULE: usize = 13;

/// The bytecode in an export of JAX; none of other bytes.
pub(crate) fn module_of_export(bytes: &[u8]) -> Option<&[u8]> {
    let table = offset(bytes, 0)?;
    // A table begins with the way back to the places of its fields.
    let back = i32::from_le_bytes(bytes.get(table..table.checked_add(4)?)?.try_into().ok()?);
    let places = usize::try_from(i64::try_from(table).ok()?.checked_sub(i64::from(back))?).ok()?;
    let size = usize::from(short(bytes, places)?);
    // Two sizes of two bytes stand before the places of fields.
    let at = 4 + 2 * MODULE;
    if at + 2 > size {
        return None;
    }
    let field = match short(bytes, places.checked_add(at)?)? {
        0 => return None,
        field => table.checked_add(usize::from(field))?,
    };
    let list = offset(bytes, field)?;
    let count = u32::from_le_bytes(bytes.get(list..list.checked_add(4)?)?.try_into().ok()?);
    let start = list + 4;
    let module = bytes.get(start..start.checked_add(usize::try_from(count).ok()?)?)?;
    module.starts_with(MAGIC).then_some(module)
}

/// The place that an offset points at.
fn offset(bytes: &[u8], at: usize) -> Option<usize> {
    let offset = u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?);
    at.checked_add(usize::try_from(offset).ok()?)
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
