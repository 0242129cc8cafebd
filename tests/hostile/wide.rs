//! Inputs that are large: many of something, something deep, or a few bytes that stand for many.

use std::fmt::Write;

use meshloom::hlo::parse::parse;
use prost::Message;
use support::random::Random;
use support::text_files::{gzip, zstd};

use super::Reader;

/// Makes a wide, deep or inflated input of about `size` bytes.
pub fn of(reader: Reader, size: usize, random: &mut Random) -> Vec<u8> {
    let text = match reader {
        Reader::HloText => hlo(size, random),
        Reader::HloProto => return proto(size, random),
        Reader::Compressed => return compressed(size, random),
        Reader::StableHlo => stablehlo(size, random),
        Reader::Profile => return profile(size, random),
        Reader::Safetensors | Reader::Parameters => return safetensors(size, random),
        Reader::ModelConfig => model_config(size, random),
        Reader::Tokenizer => tokenizer(size, random),
        Reader::Generation => generation(size, random),
        Reader::Manifest => manifest(size, random),
        Reader::Sums => repeated("", &format!("{}  shard-0\n", "0".repeat(64)), "", size),
        Reader::Rules => rules(size, random),
        Reader::RunConfig | Reader::Hardware => toml(size, random),
        Reader::Lines => lines(size, random),
        Reader::CompressedData => return compressed_data(size, random),
    };
    text.into_bytes()
}

fn repeated(before: &str, piece: &str, behind: &str, size: usize) -> String {
    format!("{before}{}{behind}", piece.repeat((size / piece.len().max(1)).max(1)))
}

/// `before`, then what `piece` writes for each number until there are `size` bytes, then `behind`.
fn numbered(before: &str, piece: impl Fn(usize) -> String, behind: &str, size: usize) -> String {
    let mut text = before.to_owned();
    for number in 0.. {
        text.push_str(&piece(number));
        if text.len() >= size {
            break;
        }
    }
    text + behind
}

const ENTRY: &str = "HloModule m\n\nENTRY e {\n";

pub fn hlo(size: usize, random: &mut Random) -> String {
    let kinds = 24;
    match random.below(kinds) {
        0 => numbered(
            &format!("{ENTRY} a0=f32[] parameter(0)\n"),
            |n| format!(" a{}=f32[] add(a{n},a{n})\n", n + 1),
            "}\n",
            size,
        ),
        1 => numbered(ENTRY, |n| format!("a{n}=f32[] parameter({n})\n"), "}\n", size),
        2 => repeated(&format!("{ENTRY} t = ("), "f32[],", "f32[]) parameter(0)\n}\n", size),
        3 => {
            let count = (size / 2).max(1);
            format!("{ENTRY} c = s32[{count}] constant({{{}0}})\n}}\n", "0,".repeat(count - 1))
        }
        4 => numbered(
            "HloModule m\n\n",
            |n| format!("c{n}{{\nROOT a=f32[] parameter(0)\n}}\n"),
            "ENTRY e {\n a=f32[] parameter(0)\n}\n",
            size,
        ),
        5 => {
            let shape = "((f32[]), f32[], u32[])";
            let before = format!("{ENTRY} p = f32[] parameter(0)\n u0 = {shape} negate-start(p)\n");
            let update = |n: usize| format!(" u{} = {shape} negate-update(u{n})\n", n + 1);
            numbered(&before, update, " d = f32[] parameter(1)\n}\n", size)
        }
        6 => nested(size, |w| format!("ROOT w = s32[] while(x), condition=c, body={w}")),
        7 => nested(size, |w| format!("ROOT w = s32[] call(x), to_apply={w}")),
        8 => nested(size, |w| format!("a = s32[] call(x), to_apply={w}\n ROOT w = s32[] call(a), to_apply={w}")),
        9 => nested(size, |w| format!("ROOT w = s32[] conditional(x, x, x), branch_computations={{{w}, {w}}}")),
        10 => nested(size, |w| format!("ROOT w = s32[] fusion(x), kind=kLoop, calls={w}")),
        11 => repeated(
            &format!("{ENTRY} a = f32[] parameter(0)\n t = f32[] custom-call("),
            "a,",
            "a), custom_call_target=\"x\"\n}\n",
            size,
        ),
        12 => format!("{ENTRY} {} = f32[] parameter(0)\n}}\n", "a".repeat(size)),
        13 => format!("{ENTRY} a = f32[] {}(b)\n}}\n", "parametre".repeat(size / 9 + 1)),
        14 => format!("{ENTRY} a = f32[] parameter(0)\n b = f32[] negate({})\n}}\n", "ab".repeat(size / 2 + 1)),
        15 => repeated(
            "HloModule m, replica_count=64\n\nENTRY e {\n a = f32[] parameter(0)\n r = f32[] all-gather(a), dimensions={0}, replica_groups={",
            "{0,1},",
            "{2}}\n}\n",
            size,
        ),
        16 => {
            let count = 10usize.pow(3 + random.below(12) as u32);
            format!(
                "HloModule m, num_partitions={count}\n\nENTRY e {{\n a = f32[] parameter(0)\n r = f32[] all-reduce(a), replica_groups=[{count},2]<=[{}], to_apply={{ x = f32[] parameter(0) }}\n}}\n",
                count.saturating_mul(2)
            )
        }
        17 => repeated(&format!("{ENTRY} a = f32["), "1,", "1] parameter(0)\n}\n", size),
        18 => {
            let count = (size as f64).sqrt() as usize;
            let shapes = "f32[],".repeat(count);
            let gte = |n: usize| format!(" g{n} = f32[] get-tuple-element(t), index={}\n", n % count.max(1));
            numbered(&format!("{ENTRY} t = ({shapes}f32[]) parameter(0)\n"), gte, "}\n", size)
        }
        19 => {
            let depth = 2 + random.below(2000);
            let mut text = format!("{ENTRY} a = {}f32[]{} parameter(0)\n}}\n", "(".repeat(depth), ")".repeat(depth));
            text.truncate(size.max(64));
            text
        }
        20 => numbered(
            &format!("{ENTRY} a0=f32[] parameter(0)\n"),
            |n| format!(" a{}=negate(a{n})\n", n + 1),
            "}\n",
            size,
        ),
        21 => {
            // Shapes that are inferred are copies.
            let count = (size as f64).sqrt() as usize / 3;
            let shapes = "f32[],".repeat(count);
            numbered(
                &format!("{ENTRY} t0 = ({shapes}f32[]) parameter(0)\n"),
                |n| format!(" t{}=copy(t{n})\n", n + 1),
                "}\n",
                size,
            )
        }
        22 => {
            let huge = 10usize.pow(3 + random.below(15) as u32);
            format!(
                "HloModule m, num_partitions={huge}\n\nENTRY e {{\n ROOT a = f32[{huge},{huge}] parameter(0), sharding={{devices=[{huge},1]<=[{huge}]}}\n}}\n"
            )
        }
        _ => numbered(
            &format!("{ENTRY} a = f32[] parameter(0)\n"),
            |n| {
                format!(
                    " b{n} = f32[] negate(a), metadata={{op_name=\"a/b{n}/c{n}\" source_file=\"f{n}.py\" source_line={n}}}\n"
                )
            },
            "}\n",
            size,
        ),
    }
}

/// Computations: each calls the one before it, whose name `body` is given.
fn nested(size: usize, body: impl Fn(&str) -> String) -> String {
    let computation = |n: usize| {
        format!("w{n} (x: s32[]) -> s32[] {{\n x = s32[] parameter(0)\n {}\n}}\n", body(&format!("w{}", n - 1)))
    };
    let before = "HloModule m\n\nc (x: s32[]) -> pred[] {\n x = s32[] parameter(0)\n ROOT r = pred[] compare(x, x), direction=LT\n}\n\
                  w0 (x: s32[]) -> s32[] {\n ROOT x = s32[] parameter(0)\n}\n";
    let text = numbered(before, |n| computation(n + 1), "", size);
    let last = text.matches("\nw").count() - 1;
    let entry = computation(last + 1).replace(&format!("w{} ", last + 1), "ENTRY e ");
    text + &entry
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field of a message that holds bytes.
pub fn field(number: u64, content: &[u8]) -> Vec<u8> {
    [&varint(number << 3 | 2)[..], &varint(content.len() as u64), content].concat()
}

fn many(number: u64, content: &[u8], size: usize) -> Vec<u8> {
    let one = field(number, content);
    one.repeat((size / one.len()).max(1))
}

/// A module with this content in its first computation, or beside it.
fn module(computation: &[u8], beside: &[u8]) -> Vec<u8> {
    let first = [&field(1, b"c")[..], computation].concat();
    [&field(1, b"m")[..], &field(2, b"c"), &field(3, &first), beside].concat()
}

pub fn proto(size: usize, random: &mut Random) -> Vec<u8> {
    let instruction = |content: &[u8]| [&field(1, b"a")[..], &field(2, b"parameter"), content].concat();
    match random.below(14) {
        0 => module(&many(2, b"", size), b""),
        1 => module(b"", &many(3, b"", size)),
        // Tuples of empty shapes.
        2 => module(&field(2, &instruction(&field(3, &many(4, b"", size)))), b""),
        3 => module(&field(2, &instruction(&field(40, &many(5, b"", size)))), b""),
        4 => module(&field(2, &instruction(&field(8, &many(10, b"", size)))), b""),
        5 => module(&field(2, &instruction(&many(49, b"", size))), b""),
        6 => field(1, &module(b"", b"")).into_iter().chain(field(3, &many(1, b"", size))).collect(),
        7 => field(1, &module(b"", b"")).into_iter().chain(field(3, &many(3, b"", size))).collect(),
        8 => {
            let depth = 10 + random.below(300);
            let shape = (0..depth).fold(Vec::new(), |inner, _| field(4, &inner));
            module(&field(2, &instruction(&field(3, &shape))), b"")
        }
        // Packed numbers of one byte each.
        9 => module(&field(2, &instruction(&field(36, &vec![1; size]))), b""),
        10 => module(&field(2, &instruction(&many(7, &[], size))), &many(7, b"", size / 2)),
        11 => module(b"", &many(14, b"", size)),
        12 => module(&many(2, &instruction(b""), size), b""),
        _ => match parse(&hlo(size, random)) {
            Ok(parsed) => parsed.hlo_module.unwrap_or_default().encode_to_vec(),
            Err(_) => module(&many(2, b"", size), b""),
        },
    }
}

fn compressed(size: usize, random: &mut Random) -> Vec<u8> {
    // The size is one that a small gzip file can decompress to.
    let inflated = size.saturating_mul(1 + random.below(64));
    match random.below(4) {
        0 => gzip(&vec![b' '; inflated]),
        1 => gzip(&[ENTRY.as_bytes(), &vec![b'\n'; inflated]].concat()),
        2 => gzip(&proto(inflated.min(4 << 20), random)),
        _ => gzip(hlo(inflated.min(4 << 20), random).as_bytes()),
    }
}

const MAIN: &str = "module @m {\n  func.func public @main(%a: tensor<f32>) -> tensor<f32> {\n";
const RETURN: &str = "    return %a : tensor<f32>\n  }\n}\n";

fn stablehlo(size: usize, random: &mut Random) -> String {
    match random.below(13) {
        0 => numbered(MAIN, |n| format!("%b{n} = stablehlo.negate %a : tensor<f32>\n"), RETURN, size),
        1 => repeated(
            "module @m {\n func.func public @main(%a: tuple<",
            "tensor<f32>,",
            "tensor<f32>>) {\n return\n }\n}\n",
            size,
        ),
        2 => {
            let count = (size / 2).max(1);
            format!(
                "{MAIN}    %c = stablehlo.constant dense<[{}0]> : tensor<{count}xi8>\n{RETURN}",
                "0,".repeat(count - 1)
            )
        }
        3 => {
            let count = 10usize.pow(3 + random.below(15) as u32);
            format!("{MAIN}    %c = stablehlo.constant dense<1> : tensor<{count}xi8>\n{RETURN}")
        }
        4 => {
            // Each of them is a value for many.
            let line = |n: usize| format!("    %c{n} = stablehlo.constant dense<1> : tensor<100000xf32>\n");
            numbered(MAIN, line, RETURN, size.min(1 << 18))
        }
        5 => numbered(
            "module @m {\n",
            |n| format!(" func.func private @f{n}(%a: tensor<f32>) -> tensor<f32> {{\n return %a : tensor<f32>\n }}\n"),
            " func.func public @main() {\n return\n }\n}\n",
            size,
        ),
        6 => {
            let call = |n: usize| {
                format!(
                    " func.func private @f{}(%a: tensor<f32>) -> tensor<f32> {{\n %0 = call @f{n}(%a) : (tensor<f32>) -> tensor<f32>\n %1 = call @f{n}(%0) : (tensor<f32>) -> tensor<f32>\n return %1 : tensor<f32>\n }}\n",
                    n + 1
                )
            };
            numbered(
                "module @m {\n func.func private @f0(%a: tensor<f32>) -> tensor<f32> {\n return %a : tensor<f32>\n }\n",
                call,
                " func.func public @main(%a: tensor<f32>) -> tensor<f32> {\n %0 = call @f9(%a) : (tensor<f32>) -> tensor<f32>\n return %0 : tensor<f32>\n }\n}\n",
                size,
            )
        }
        7 => {
            let depth = 2 + random.below(3000);
            format!(
                "module @m {{\n func.func public @main(%a: {}tensor<f32>{}) {{\n return\n }}\n}}\n",
                "tuple<".repeat(depth),
                ">".repeat(depth)
            )
        }
        8 => {
            let depth = 2 + random.below(3000);
            format!("module @m attributes {{x = {}1{}}} {{\n}}\n", "[".repeat(depth), "]".repeat(depth))
        }
        9 => numbered(
            "",
            |n| format!("#loc{n} = loc(callsite(#loc{} at #loc{}))\n", n + 1, n + 2),
            &format!("{MAIN}{RETURN}"),
            size,
        ),
        10 => {
            // Aliases that double.
            let mut text = "!t0 = tuple<tensor<f32>, tensor<f32>>\n".to_owned();
            for n in 1..60 {
                let _ = writeln!(text, "!t{n} = tuple<!t{0}, !t{0}>", n - 1);
            }
            format!("{text}module @m {{\n func.func public @main(%a: !t59) {{\n return\n }}\n}}\n")
        }
        11 => {
            let size = 10usize.pow(3 + random.below(15) as u32);
            format!(
                "module @m attributes {{mhlo.num_partitions = {size} : i32}} {{\n sdy.mesh @mesh = <[\"x\"={size}]>\n func.func public @main(%a: tensor<{size}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"x\"}}]>}}) -> tensor<{size}xf32> {{\n return %a : tensor<{size}xf32>\n }}\n}}\n"
            )
        }
        _ => {
            let depth = 2 + random.below(2000);
            let open =
                "%w = stablehlo.while(%i = %a) : tensor<f32>\n cond {\n stablehlo.return %p : tensor<i1>\n } do {\n"
                    .repeat(depth);
            format!("{MAIN}{open}{}{RETURN}", "stablehlo.return %i : tensor<f32>\n}\n".repeat(depth))
        }
    }
}

pub fn profile(size: usize, random: &mut Random) -> Vec<u8> {
    let name = field(2, b"/device:TPU:0");
    let plane = |content: Vec<u8>| field(1, &[&name[..], &content].concat());
    match random.below(8) {
        0 => plane(many(3, b"", size)),
        1 => plane(field(3, &many(4, b"", size))),
        2 => plane(many(6, b"", size)),
        3 => plane(Vec::new()).into_iter().chain(many(1, b"", size)).collect(),
        // Entries of tables under ever new keys.
        4 => {
            let entry = |key: usize| field(4, &[&[8][..], &varint(key as u64)].concat());
            plane((0..(size / 6).max(1)).flat_map(entry).collect())
        }
        5 => {
            let entry = |key: usize| field(5, &[&[8][..], &varint(key as u64)].concat());
            plane((0..(size / 6).max(1)).flat_map(entry).collect())
        }
        6 => {
            // A program in it, twice wrapped.
            let program = field(1, &proto(size, random));
            let stat = [&[8, 1][..], &field(6, &program)].concat();
            let number = [&[8, 2][..], &[32, 1]].concat();
            let metadata = [&[8, 1][..], &field(2, b"jit_f(1)"), &field(5, &stat), &field(5, &number)].concat();
            let names = [(1, "Hlo Proto"), (2, "program_id")].map(|(key, name)| {
                field(5, &[&[8, key][..], &field(2, &[&[8, key][..], &field(2, name.as_bytes())].concat())].concat())
            });
            let content = [names.concat(), field(4, &[&[8, 1][..], &field(2, &metadata)].concat())].concat();
            field(1, &[&field(2, b"/host:metadata")[..], &content].concat())
        }
        _ => plane(Vec::new()).into_iter().chain(many(4, b"", size)).collect(),
    }
}

/// A file with this header.
pub fn with_header(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

fn safetensors(size: usize, random: &mut Random) -> Vec<u8> {
    let empty = |n: usize| format!("\"t{n}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}},");
    match random.below(7) {
        0 => with_header(
            &numbered("{", empty, "\"last\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", size),
            0,
        ),
        1 => with_header(
            &repeated("{\"a\":{\"dtype\":\"F32\",\"shape\":[", "1,", "1],\"data_offsets\":[0,4]}}", size),
            4,
        ),
        2 => with_header(
            &format!("{{\"{}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}}}", "a".repeat(size)),
            4,
        ),
        3 => [&(1u64 << random.below(63)).to_le_bytes()[..], b"{}"].concat(),
        4 => with_header(&format!("{{\"a\":{}{}}}", "[".repeat(size / 2), "]".repeat(size / 2)), 0),
        5 => with_header(&numbered("{\"__metadata__\":{", |n| format!("\"k{n}\":\"\","), "\"z\":\"\"}}", size), 0),
        _ => {
            let huge = 1u64 << random.below(62);
            with_header(
                &format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{huge},{huge}],\"data_offsets\":[0,{huge}]}}}}"),
                8,
            )
        }
    }
}

fn model_config(size: usize, random: &mut Random) -> String {
    let llama = "\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,\"intermediate_size\":8,\"num_hidden_layers\":2,\"vocab_size\":256";
    let nested =
        |open: &str, close: &str| format!("{{{llama},\"x\":{}{}}}", open.repeat(size / 2), close.repeat(size / 2));
    match random.below(9) {
        0 => numbered(&format!("{{{llama}"), |n| format!(",\"k{n}\":0"), "}", size),
        1 => nested("[", "]"),
        2 => nested("{\"a\":", "}"),
        3 => repeated(&format!("{{{llama},\"layer_types\":["), "\"full_attention\",", "\"full_attention\"]}", size),
        4 => repeated(&format!("{{{llama},\"x\":["), "0,", "0]}", size),
        5 => repeated(&format!("{{{llama},\"x\":["), "[],", "0]}", size),
        6 => format!("{{\"model_type\":\"{}\"}}", "llama".repeat(size / 5)),
        7 => format!("{{{llama},\"vocab_size\":{}}}", "9".repeat(size)),
        _ => {
            let types =
                ["llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma2", "deepseek_v3", "gpt_oss"];
            let number = |random: &mut Random| {
                [1u64, 2, 64, 1 << 16, 1 << 20, 1 << 30, i32::MAX as u64, 1 << 40, u64::MAX][random.below(9)]
            };
            let keys = [
                "hidden_size",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "intermediate_size",
                "num_hidden_layers",
                "vocab_size",
                "num_experts",
                "num_local_experts",
                "n_routed_experts",
                "num_experts_per_tok",
                "moe_intermediate_size",
                "qk_rope_head_dim",
                "qk_nope_head_dim",
                "v_head_dim",
                "kv_lora_rank",
                "q_lora_rank",
                "max_position_embeddings",
                "sliding_window",
                "num_nextn_predict_layers",
                "decoder_sparse_step",
                "max_window_layers",
                "n_group",
                "topk_group",
                "first_k_dense_replace",
            ];
            let huge = [keys[random.below(keys.len())], keys[random.below(keys.len())]];
            let values = keys.map(|key| {
                let value = if huge.contains(&key) { number(random) } else { [2, 4, 64][random.below(3)] };
                format!(",\"{key}\":{value}")
            });
            format!("{{\"model_type\":\"{}\"{}}}", types[random.below(types.len())], values.concat())
        }
    }
}

/// A tokenizer of bytes with this beside its model.
fn with_rules(rules: &str) -> String {
    format!(
        "{{\"version\":\"1.0\",{rules},\"model\":{{\"type\":\"BPE\",\"vocab\":{{\"a\":0,\"b\":1,\"aa\":2}},\"merges\":[\"a a\"]}}}}"
    )
}

fn tokenizer(size: usize, random: &mut Random) -> String {
    let replace = |pattern: &str, content: &str| {
        format!("{{\"type\":\"Replace\",\"pattern\":{pattern},\"content\":\"{content}\"}}")
    };
    match random.below(14) {
        0 => numbered(
            "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{",
            |n| format!("\"{n}\":{n},"),
            "\"a\":99999999}}}",
            size,
        ),
        1 => repeated(
            "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[",
            "\"a a\",",
            "\"a a\"]}}",
            size,
        ),
        2 => repeated(
            "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[",
            "[\"a\",\"a\"],",
            "[\"a\",\"a\"]]}}",
            size,
        ),
        3 => numbered(
            "{\"version\":\"1.0\",\"added_tokens\":[",
            |n| {
                format!(
                    "{{\"id\":{n},\"content\":\"t{n}\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}},"
                )
            },
            "{\"id\":99999999,\"content\":\"z\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
            size,
        ),
        4 => {
            // Each doubles the text.
            let doubling = replace("{\"String\":\"a\"}", "aa");
            let rules = vec![doubling; 8 + random.below(40)].join(",");
            with_rules(&format!("\"normalizer\":{{\"type\":\"Sequence\",\"normalizers\":[{rules}]}}"))
        }
        5 => with_rules(&format!("\"normalizer\":{}", replace("{\"Regex\":\"\"}", &"a".repeat(size)))),
        6 => with_rules(&format!("\"normalizer\":{{\"type\":\"Prepend\",\"prepend\":\"{}\"}}", "a".repeat(size))),
        7 => {
            let doubling = replace("{\"String\":\"a\"}", "aa");
            let rules = vec![doubling; 8 + random.below(40)].join(",");
            with_rules(&format!("\"decoder\":{{\"type\":\"Sequence\",\"decoders\":[{rules}]}}"))
        }
        8 => {
            let ids = "0,".repeat(size / 2);
            with_rules(&format!(
                "\"post_processor\":{{\"type\":\"TemplateProcessing\",\"single\":[{{\"SpecialToken\":{{\"id\":\"x\",\"type_id\":0}}}},{{\"Sequence\":{{\"id\":\"A\",\"type_id\":0}}}}],\"pair\":[],\"special_tokens\":{{\"x\":{{\"id\":\"x\",\"ids\":[{ids}0],\"tokens\":[\"a\"]}}}}}}"
            ))
        }
        9 => with_rules(&format!(
            "\"normalizer\":{}{}",
            "{\"type\":\"Sequence\",\"normalizers\":[".repeat(size / 40 + 1),
            "]}".repeat(size / 40 + 1)
        )),
        10 => numbered(
            "{\"version\":\"1.0\",\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0.0]",
            |n| format!(",[\"{n}\",-1.0]"),
            "]}}",
            size,
        ),
        11 => with_rules(&format!(
            "\"pre_tokenizer\":{{\"type\":\"Split\",\"pattern\":{{\"Regex\":\"{}\"}},\"behavior\":\"Isolated\",\"invert\":false}}",
            ["(a*)*b", "(a+)+$", "(a|a)*c", "a{1,1000}{1,1000}", "(?=(a+))b"][random.below(5)]
        )),
        12 => with_rules(
            "\"padding\":{\"strategy\":{\"Fixed\":1152921504606846976},\"direction\":\"Right\",\"pad_to_multiple_of\":null,\"pad_id\":0,\"pad_type_id\":0,\"pad_token\":\"a\"}",
        ),
        _ => with_rules(&format!(
            "\"normalizer\":{{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"{}\"}}",
            "AAAA".repeat(size / 4)
        )),
    }
}

fn generation(size: usize, random: &mut Random) -> String {
    match random.below(4) {
        0 => repeated("{\"eos_token_id\":[", "1,", "1]}", size),
        1 => format!("{{\"eos_token_id\":{}{}}}", "[".repeat(size / 2), "]".repeat(size / 2)),
        2 => numbered("{", |n| format!("\"k{n}\":[],"), "\"eos_token_id\":1}", size),
        _ => repeated("{\"x\":[", "{},", "{}]}", size),
    }
}

fn manifest(size: usize, random: &mut Random) -> String {
    let with =
        |files: &str, leaves: &str| super::inputs::MANIFEST.replace("[FILES]", files).replace("[LEAVES]", leaves);
    let file = "{\"name\":\"shard-0.bin\",\"bytes\":8}";
    match random.below(7) {
        0 => with(&numbered("", |n| format!("{{\"name\":\"shard-{n}.bin\",\"bytes\":0}},"), file, size), ""),
        1 => with(
            file,
            &numbered(
                "",
                |n| {
                    format!(
                        "{{\"path\":\"p{n}\",\"dtype\":\"f32\",\"dims\":[0],\"has_replicas\":false,\"pieces\":[]}},"
                    )
                },
                "{\"path\":\"p\",\"dtype\":\"f32\",\"dims\":[0],\"has_replicas\":false,\"pieces\":[]}",
                size,
            ),
        ),
        2 => with(
            file,
            &format!(
                "{{\"path\":\"p\",\"dtype\":\"f32\",\"dims\":[{0}],\"has_replicas\":false,\"pieces\":[{1}]}}",
                size / 60,
                numbered(
                    "",
                    |n| format!("{{\"file\":0,\"offset\":0,\"start\":[{n}],\"dims\":[1]}},"),
                    "{\"file\":0,\"offset\":0,\"start\":[0],\"dims\":[1]}",
                    size
                )
            ),
        ),
        3 => with(
            file,
            &format!(
                "{{\"path\":\"p\",\"dtype\":\"f32\",\"dims\":[{}1],\"has_replicas\":false,\"pieces\":[]}}",
                "1,".repeat(size / 2)
            ),
        ),
        4 => with(file, &format!("{{\"path\":{}}}", "[".repeat(size))),
        5 => with(
            file,
            &format!(
                "{{\"path\":\"p\",\"dtype\":\"f32\",\"dims\":[{0},{0}],\"has_replicas\":true,\"pieces\":[{{\"file\":0,\"offset\":{0},\"start\":[0,0],\"dims\":[{0},1]}}]}}",
                1u64 << random.below(63)
            ),
        ),
        _ => super::inputs::MANIFEST
            .replace("[FILES]", "")
            .replace("[LEAVES]", "")
            .replace("\"data=1\"", &format!("\"{}\"", "a".repeat(size))),
    }
}

fn rules(size: usize, random: &mut Random) -> String {
    match random.below(8) {
        0 => numbered("logical_axis_rules: [\n", |n| format!("['a{n}', ['fsdp']],\n"), "]\n", size),
        1 => format!("logical_axis_rules: {}{}", "[".repeat(size / 2), "]".repeat(size / 2)),
        2 => {
            // Each is nine of the one before.
            let mut text = "a0: &a0 ['lol','lol','lol']\n".to_owned();
            for n in 1..12 {
                let one = format!("*a{},", n - 1);
                let _ = writeln!(text, "a{n}: &a{n} [{}]", one.repeat(9));
            }
            text + "logical_axis_rules: *a11\n"
        }
        3 => repeated("mesh_axes: [", "'fsdp',", "'fsdp']\n", size),
        4 => format!("? {}\n", "- ".repeat(size / 2)),
        5 => repeated("logical_axis_rules:\n", "  - ['embed', 'fsdp']\n", "", size),
        6 => format!("logical_axis_rules: [['{}', 'fsdp']]\n", "x".repeat(size)),
        _ => numbered("", |n| format!("k{n}: {n}\n"), "logical_axis_rules: []\n", size),
    }
}

fn toml(size: usize, random: &mut Random) -> String {
    match random.below(9) {
        0 => numbered("[model]\n", |n| format!("k{n} = 0\n"), "", size),
        1 => format!("a = {}{}\n", "[".repeat(size / 2), "]".repeat(size / 2)),
        2 => format!("{}a = 1\n", "a.".repeat(size / 2)),
        3 => format!("[{}a]\n", "a.".repeat(size / 2)),
        4 => repeated("[data]\nsources = [", "'a',", "'a']\n", size),
        5 => format!("a = \"{}\"\n", "x".repeat(size)),
        6 => format!("[model]\n{} = 1\n", "layers".repeat(size / 6 + 1)),
        7 => repeated("", "[[a]]\n", "", size),
        _ => {
            let keys = [
                "layers",
                "embed",
                "heads",
                "kv_heads",
                "head_dim",
                "mlp",
                "vocab",
                "seq",
                "family.experts",
                "family.experts_per_token",
                "family.moe_mlp",
                "family.q_lora",
                "family.kv_lora",
                "family.rope_head_dim",
                "family.v_head_dim",
            ];
            let huge = [1u64 << 20, 1 << 31, 1 << 40, i64::MAX as u64][random.below(4)];
            let family = ["llama", "mixtral", "deepseek"][random.below(3)];
            format!(
                "[model]\nfamily.kind = \"{family}\"\nscan_layers = {}\n{} = {huge}\n",
                random.below(2) == 0,
                keys[random.below(keys.len())]
            )
        }
    }
}

fn lines(size: usize, random: &mut Random) -> String {
    match random.below(7) {
        0 => repeated("", "{\"text\":\"a\"}\n", "", size),
        1 => repeated("{\"text\":[", "0,", "0]}\n", size),
        2 => format!("{{\"text\":{}{}}}\n", "[".repeat(size / 2), "]".repeat(size / 2)),
        3 => format!("{{\"text\":\"{}\"}}\n", "\\u00e9".repeat(size / 6)),
        4 => repeated("{\"x\":{", "\"a\":{},", "\"b\":1},\"text\":\"a b c\"}\n", size),
        5 => "\n".repeat(size),
        _ => numbered("", |n| format!("{{\"k{n}\":1,\"text\":\"line {n} of many\"}}\n"), "", size),
    }
}

fn compressed_data(size: usize, random: &mut Random) -> Vec<u8> {
    let inflated = size.saturating_mul(1 + random.below(64));
    let text = match random.below(3) {
        0 => "{\"text\":\"a\"}\n".repeat(inflated / 13 + 1),
        1 => format!("{{\"text\":\"{}\"}}\n", "a".repeat(inflated)),
        _ => " ".repeat(inflated),
    };
    if random.below(2) == 0 { gzip(text.as_bytes()) } else { zstd(text.as_bytes()) }
}
