//! How each dialect encodes its attributes and types, as tables by the numbers of their kinds.
//!
//! Most are templates, in which a letter after `%` stands for what the bytes have there:
//!
//! | | |
//! |---|---|
//! | `%i`, `%u` | a signed number, one without a sign |
//! | `%l` | a list of signed numbers |
//! | `%v`, `%b` | true or false, as a number or a byte |
//! | `%d` | a float of 64 bits |
//! | `%s` | a string |
//! | `%a`, `%A` | an attribute, a list of some |
//! | `%t`, `%T` | a type, a list of some |

use std::fmt::Write;

use half::{bf16, f16};

use super::super::super::names;
use super::bytes::Bytes;
use super::sdy;
use super::texts::Encoding::{Own, Text, Words};
use super::texts::{Encoding, EncodingTables, Texts, integer_type, write_float};
use crate::parse::Result;
use crate::small_float::SmallFloat;

/// The encodings of all dialects.
pub(super) const TABLES: EncodingTables = EncodingTables { attribute, of_type, around };

/// The encoding of an attribute of a dialect.
fn attribute(dialect: &str, code: u64) -> Option<Encoding> {
    let table = match dialect {
        "builtin" => BUILTIN,
        "vhlo" => VHLO,
        "stablehlo" | "mhlo" => STABLEHLO,
        "chlo" => CHLO,
        "sdy" => sdy::ATTRIBUTES,
        _ => return None,
    };
    table.get(usize::try_from(code).ok()?).copied().filter(|encoding| !matches!(encoding, Text("")))
}

/// The encoding of a type of a dialect.
fn of_type(dialect: &str, code: u64) -> Option<Encoding> {
    let table = match dialect {
        "builtin" => BUILTIN_TYPES,
        "vhlo" => VHLO_TYPES,
        "stablehlo" | "mhlo" => STABLEHLO_TYPES,
        _ => return None,
    };
    table.get(usize::try_from(code).ok()?).copied().filter(|encoding| !matches!(encoding, Text("")))
}

/// The text around an attribute of a kind where it stands alone.
fn around(dialect: &str, code: u64) -> (&'static str, &'static str) {
    if dialect == "sdy" { sdy::around(code) } else { ("", "") }
}

const DIRECTIONS: &[&str] = &["EQ", "NE", "GE", "GT", "LE", "LT"];
const COMPARISONS: &[&str] = &["NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"];
const FFT: &[&str] = &["FFT", "IFFT", "RFFT", "IRFFT"];
const PRECISIONS: &[&str] = &["DEFAULT", "HIGH", "HIGHEST"];
const ALGORITHMS: &[&str] = &["DEFAULT", "THREE_FRY", "PHILOX"];
const DISTRIBUTIONS: &[&str] = &["", "UNIFORM", "NORMAL"];
const TRANSPOSES: &[&str] = &["TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"];
const ACCURACIES: &[&str] = &["DEFAULT", "HIGHEST", "TOLERANCE"];

const ALIAS: Encoding =
    Text("#stablehlo.output_operand_alias<output_tuple_indices = %l, operand_index = %i, operand_tuple_indices = %l>");
const ACCURACY: Encoding = Text("#stablehlo.result_accuracy<atol = %d, rtol = %d, ulps = %i, mode = %a>");
const BOUNDS: Encoding = Text("#stablehlo.type_extensions<bounds = %l>");
/// As it stands in the reference of an axis, the only place that it has.
const SUB_AXIS: Encoding = Text("(%i)%i");

pub(in crate::stablehlo) const BUILTIN: &[Encoding] = &[
    Text("[%A]"),
    Own(dictionary),
    Text("%s"),
    Text("%s : %t"),
    Own(symbol),
    Own(nested_symbol),
    Text("%t"),
    Text("unit"),
    Own(integer),
    Own(float),
    // Locations: those of ops are read by themselves.
    Text("loc(unknown)"),
    Text("loc(unknown)"),
    Text("loc(unknown)"),
    Text("loc(unknown)"),
    Text("loc(unknown)"),
    Text("loc(unknown)"),
    Own(resource),
    Own(array),
    Own(dense),
    Text(""),
    Text(""),
    Text("distinct[0]<%a>"),
    Text("loc(unknown)"),
];

pub(in crate::stablehlo) const VHLO: &[Encoding] = &[
    Text(""),
    Text("[%A]"),
    Text("%v"),
    Words("#stablehlo<comparison_direction %>", DIRECTIONS),
    Words("#stablehlo<comparison_type %>", COMPARISONS),
    Text("%u : i32"),
    Own(dictionary),
    Words("#stablehlo<fft_type %>", FFT),
    Own(float),
    Own(integer),
    ALIAS,
    Words("#stablehlo<precision %>", PRECISIONS),
    Words("#stablehlo<rng_algorithm %>", ALGORITHMS),
    Words("#stablehlo<rng_distribution %>", DISTRIBUTIONS),
    Text("%s"),
    Own(dense),
    Words("#stablehlo<transpose %>", TRANSPOSES),
    Text("%t"),
    BOUNDS,
    Words("#stablehlo.result_accuracy_mode<%>", ACCURACIES),
    ACCURACY,
    SUB_AXIS,
    Own(vhlo_axis),
    Own(vhlo_groups),
    Text("#stablehlo.mesh_axis<name = %a, size = %i>"),
    Own(vhlo_mesh),
];

const STABLEHLO: &[Encoding] = &[
    Text(""),
    Text("#stablehlo.channel_handle<handle = %i, type = %i>"),
    Words("#stablehlo<comparison_direction %>", DIRECTIONS),
    Words("#stablehlo<comparison_type %>", COMPARISONS),
    Text(
        "#stablehlo.conv<raw input_batch_dimension = %i, input_feature_dimension = %i, input_spatial_dimensions = %l, \
         kernel_input_feature_dimension = %i, kernel_output_feature_dimension = %i, kernel_spatial_dimensions = %l, \
         output_batch_dimension = %i, output_feature_dimension = %i, output_spatial_dimensions = %l>",
    ),
    Text(
        "#stablehlo.dot<lhs_batching_dimensions = %l, rhs_batching_dimensions = %l, lhs_contracting_dimensions = %l, \
         rhs_contracting_dimensions = %l>",
    ),
    Words("#stablehlo<fft_type %>", FFT),
    Text(
        "#stablehlo.gather<offset_dims = %l, collapsed_slice_dims = %l, operand_batching_dims = %l, \
         start_indices_batching_dims = %l, start_index_map = %l, index_vector_dim = %i>",
    ),
    Words("#stablehlo<precision %>", PRECISIONS),
    Words("#stablehlo<rng_algorithm %>", ALGORITHMS),
    Words("#stablehlo<rng_distribution %>", DISTRIBUTIONS),
    Text(
        "#stablehlo.scatter<update_window_dims = %l, inserted_window_dims = %l, input_batching_dims = %l, \
         scatter_indices_batching_dims = %l, scatter_dims_to_operand_dims = %l, index_vector_dim = %i>",
    ),
    Words("#stablehlo<transpose %>", TRANSPOSES),
    BOUNDS,
    ALIAS,
    Text(
        "#stablehlo.dot_algorithm<lhs_precision_type = %t, rhs_precision_type = %t, accumulation_type = %t, \
         lhs_component_count = %i, rhs_component_count = %i, num_primitive_operations = %i, \
         allow_imprecise_accumulation = %b>",
    ),
    Words("#stablehlo.result_accuracy_mode<%>", ACCURACIES),
    ACCURACY,
    Text("#stablehlo.replica_group_mesh_axes<mesh = %a, axes = [%A]>"),
    SUB_AXIS,
    Own(axis),
    Text("#stablehlo.mesh_axis<name = %s, size = %i>"),
    Own(mesh),
];

const CHLO: &[Encoding] =
    &[Words("#chlo<comparison_direction %>", DIRECTIONS), Words("#chlo<comparison_type %>", COMPARISONS)];

pub(in crate::stablehlo) const BUILTIN_TYPES: &[Encoding] = &[
    Own(write_integer_type),
    Text("index"),
    Text("(%T) -> (%T)"),
    Text("bf16"),
    Text("f16"),
    Text("f32"),
    Text("f64"),
    Text("f80"),
    Text("f128"),
    Text("complex<%t>"),
    Text("memref<?>"),
    Text("memref<?>"),
    Text("none"),
    Own(tensor),
    Own(encoded_tensor),
    Text("tuple<%T>"),
    Text("memref<*x?>"),
    Text("memref<*x?>"),
    Text("tensor<*x%t>"),
    Text("vector<?>"),
    Text("vector<?>"),
    Text("tf32"),
    Text("f8E5M2"),
    Text("f8E4M3"),
    Text("f8E4M3FN"),
    Text("f8E5M2FNUZ"),
    Text("f8E4M3FNUZ"),
    Text("f8E4M3B11FNUZ"),
    Text("f8E3M4"),
    Text("f4E2M1FN"),
    Text("f6E2M3FN"),
    Text("f6E3M2FN"),
    Text("f8E8M0FNU"),
];

pub(in crate::stablehlo) const VHLO_TYPES: &[Encoding] = &[
    Text("i1"),
    Text("complex<%t>"),
    Text("bf16"),
    Text("f16"),
    Text("f32"),
    Text("f64"),
    Text("f8E4M3FN"),
    Text("f8E5M2"),
    Text("(%T) -> (%T)"),
    Text("index"),
    Text("i4"),
    Text("i8"),
    Text("i16"),
    Text("i32"),
    Text("i64"),
    Text("ui4"),
    Text("ui8"),
    Text("ui16"),
    Text("ui32"),
    Text("ui64"),
    Own(tensor),
    Own(encoded_tensor),
    Text("!stablehlo.token"),
    Text("tuple<%T>"),
    Text("!quant.uniform<...>"),
    Text("tensor<*x%t>"),
    Text("!shape.witness"),
    Text("f8E4M3FNUZ"),
    Text("f8E5M2FNUZ"),
    Text("f8E4M3B11FNUZ"),
    Text("!quant.uniform<...>"),
    Text("i2"),
    Text("ui2"),
    Text("none"),
    Text("tf32"),
    Text("f8E4M3"),
    Text("f8E3M4"),
    Text("f4E2M1FN"),
    Text("f6E2M3FN"),
    Text("f6E3M2FN"),
    Text("f8E8M0FNU"),
    Own(buffer),
    Text("!stablehlo.future<%T>"),
];

const STABLEHLO_TYPES: &[Encoding] = &[Text("!stablehlo.token"), Text("!stablehlo.future<%T>")];

/// `{name = value, name}`
fn dictionary<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.text.push('{');
    texts.items(bytes, ", ", |texts, bytes| {
        let name = bytes.index()?;
        let name = texts.string_of(name, bytes.here())?;
        texts.bare(name);
        let value = bytes.index()?;
        if !texts.is_unit(value) {
            texts.text.push_str(" = ");
            texts.write_attribute(value, bytes.here())?;
        }
        Ok(())
    })?;
    texts.text.push('}');
    Ok(())
}

/// `@name`; the name is an attribute.
fn symbol<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let name = bytes.index()?;
    let name = texts.string_of(name, bytes.here())?;
    texts.text.push('@');
    texts.bare(name);
    Ok(())
}

/// `@name::@name`
fn nested_symbol<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    symbol(texts, bytes)?;
    texts.items(bytes, "", |texts, bytes| texts.expand("::%a", bytes))
}

/// `1 : i32`, `true`
fn integer<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let name = bytes.index()?;
    let name = texts.number_type(name, bytes.here())?;
    let bits = name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).parse().unwrap_or(64u32);
    let value = match bits {
        0..=8 => {
            let unused = 8 - bits.clamp(1, 8);
            i64::from((bytes.byte()? << unused) as i8 >> unused)
        }
        9..=64 => bytes.signed()?,
        _ => return bytes.fault(format!("expected an integer of 64 bits at most, found one of {bits}")),
    };
    match name.as_ref() {
        "i1" => _ = write!(texts.text, "{}", value != 0),
        name if name.starts_with('u') => {
            _ = write!(texts.text, "{} : {name}", value as u64 & u64::MAX >> (64 - bits.clamp(1, 64)));
        }
        name => _ = write!(texts.text, "{value} : {name}"),
    }
    Ok(())
}

/// `1.000000e+00 : f32`
fn float<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let name = bytes.index()?;
    let name = texts.number_type(name, bytes.here())?;
    let small = names::element(&name).and_then(|element| SmallFloat::of(element.into()));
    let value = match (name.as_ref(), small) {
        (_, Some(small)) => small.decode(bytes.byte()?),
        ("f64", _) => f64::from_bits(bytes.signed()? as u64),
        ("f32", _) => f64::from(f32::from_bits(bytes.signed()? as u32)),
        ("tf32", _) => f64::from(f32::from_bits((bytes.signed()? as u32) << 13)),
        ("f16", _) => f16::from_bits(bytes.signed()? as u16).to_f64(),
        ("bf16", _) => bf16::from_bits(bytes.signed()? as u16).to_f64(),
        _ => return bytes.fault(format!("expected a type of floats, found {name}")),
    };
    write_float(&mut texts.text, value, name.as_ref());
    _ = write!(texts.text, " : {name}");
    Ok(())
}

/// `dense_resource<name> : tensor<2xf32>`
fn resource<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let shape = bytes.index()?;
    let index = bytes.index()?;
    let Some(resource) = texts.file.resources.get(index as usize) else {
        return bytes.fault(format!("there is no resource of number {index}"));
    };
    _ = write!(texts.text, "dense_resource<{}> : ", resource.name);
    texts.write_type(shape, bytes.here())
}

/// `array<i64: 1, 2>`
fn array<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let name = bytes.index()?;
    let name = texts.number_type(name, bytes.here())?;
    let count = bytes.number()?;
    let size = bytes.number()?;
    let content = bytes.take(size)?;
    let width = match name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).parse().unwrap_or(64usize) {
        bits @ 1..=64 => bits.div_ceil(8),
        bits => return bytes.fault(format!("expected numbers of 64 bits at most, found {bits}")),
    };
    if count.checked_mul(width as u64) != Some(size) {
        return bytes.fault(format!("an array has {size} bytes for {count} numbers of {width}"));
    }
    _ = write!(texts.text, "array<{name}");
    for (number, item) in content.chunks_exact(width).enumerate() {
        texts.text.push_str(if number > 0 { ", " } else { ": " });
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(item);
        let unused = 64 - 8 * width as u32;
        let value = i64::from_le_bytes(wide) << unused >> unused;
        match name.as_ref() {
            "i1" => texts.display(value != 0),
            "f32" => texts.display(f32::from_bits(value as u32)),
            "f64" => texts.display(f64::from_bits(value as u64)),
            _ => texts.display(value),
        }
    }
    texts.text.push('>');
    Ok(())
}

/// `dense<"0x0000803F"> : tensor<1xf32>`; that of an op's own is read as bytes.
fn dense<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let shape = bytes.index()?;
    let size = bytes.number()?;
    let content = bytes.take(size)?;
    texts.memory.take(content.len().saturating_mul(2), bytes.here())?;
    texts.text.push_str("dense<\"0x");
    for byte in content {
        _ = write!(texts.text, "{byte:02X}");
    }
    texts.text.push_str("\"> : ");
    texts.write_type(shape, bytes.here())
}

fn write_integer_type<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let name = integer_type(bytes)?;
    texts.text.push_str(&name);
    Ok(())
}

/// The sizes of a shape, each with an `x` after it. A negative one is not known.
fn sizes<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.items(bytes, "", |texts, bytes| {
        match bytes.signed()? {
            size @ 0.. => _ = write!(texts.text, "{size}x"),
            _ => texts.text.push_str("?x"),
        }
        Ok(())
    })
}

/// `tensor<2x3xf32>`
fn tensor<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.text.push_str("tensor<");
    sizes(texts, bytes)?;
    texts.expand("%t>", bytes)
}

/// `tensor<2x3xf32, #stablehlo.type_extensions<bounds = [2, 3]>>`
fn encoded_tensor<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    let encoding = bytes.index()?;
    texts.text.push_str("tensor<");
    sizes(texts, bytes)?;
    texts.expand("%t, ", bytes)?;
    texts.write_attribute(encoding, bytes.here())?;
    texts.text.push('>');
    Ok(())
}

/// `memref<2x3xf32>`
fn buffer<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.text.push_str("memref<");
    sizes(texts, bytes)?;
    texts.expand("%t>", bytes)
}

/// `#stablehlo.axis_ref<name = "x", sub_axis_info = (1)2>`, whose name is a string.
fn axis<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.expand("#stablehlo.axis_ref<name = %s", bytes)?;
    let has_part = bytes.byte()? != 0;
    axis_part(texts, bytes, has_part)
}

/// The same, whose name is an attribute.
fn vhlo_axis<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.expand("#stablehlo.axis_ref<name = %a", bytes)?;
    let has_part = bytes.number()? != 0;
    axis_part(texts, bytes, has_part)
}

fn axis_part<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>, has_part: bool) -> Result<()> {
    if has_part {
        texts.expand(", sub_axis_info = %a", bytes)?;
    }
    texts.text.push('>');
    Ok(())
}

/// `#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [...]>`; the name of the mesh is a string.
fn vhlo_groups<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.text.push_str("#stablehlo.replica_group_mesh_axes<mesh = ");
    let mesh = bytes.index()?;
    match texts.string_of(mesh, bytes.here()) {
        Ok(name) => {
            texts.text.push('@');
            texts.bare(name);
        }
        Err(_) => texts.write_attribute(mesh, bytes.here())?,
    }
    texts.expand(", axes = %a>", bytes)
}

/// `#stablehlo.mesh<axes = [...], device_ids = dense<...> : tensor<4xi64>>`
fn mesh<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.expand("#stablehlo.mesh<axes = %a", bytes)?;
    match bytes.byte()? {
        0 => texts.text.push('>'),
        _ => texts.expand(", device_ids = %a>", bytes)?,
    }
    Ok(())
}

fn vhlo_mesh<'a>(texts: &mut Texts<'a, '_>, bytes: &mut Bytes<'a>) -> Result<()> {
    texts.expand("#stablehlo.mesh<axes = %a", bytes)?;
    match bytes.flagged()? {
        (index, true) => {
            texts.text.push_str(", device_ids = ");
            texts.write_attribute(u32::try_from(index).unwrap_or(u32::MAX), bytes.here())?;
            texts.text.push('>');
        }
        (_, false) => texts.text.push('>'),
    }
    Ok(())
}
