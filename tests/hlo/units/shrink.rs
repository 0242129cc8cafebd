use meshloom::analysis::shrink::{Limits, Verdict, instruction_count, shrink, shrink_pair};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::text::{TextOptions, print};

fn read(text: &str) -> HloModuleProto {
    parse(text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module")
}

/// Returns the canonical text of the module, and reads it back to check that it is a program.
fn text(module: &HloModuleProto) -> String {
    let text = print(module, &TextOptions::canonical());
    read(&text);
    text
}

fn shows_if(holds: impl Fn(&HloModuleProto) -> bool) -> impl FnMut(&HloModuleProto) -> Verdict {
    move |module| if holds(module) { Verdict::Shows } else { Verdict::Gone }
}

fn has(opcode: &'static str) -> impl Fn(&HloModuleProto) -> bool {
    move |module| module.computations.iter().flat_map(|it| &it.instructions).any(|it| it.opcode == opcode)
}

const LAYERS: &str = "HloModule layers

body {
  carry = (s32[], f32[8,4]) parameter(0)
  step = s32[] get-tuple-element(carry), index=0
  one = s32[] constant(1)
  next = s32[] add(step, one)
  value = f32[8,4] get-tuple-element(carry), index=1
  sine = f32[8,4] sine(value)
  scaled = f32[8,4] multiply(sine, value)
  ROOT both = (s32[], f32[8,4]) tuple(next, scaled)
}

condition {
  carry = (s32[], f32[8,4]) parameter(0)
  step = s32[] get-tuple-element(carry), index=0
  limit = s32[] constant(7)
  ROOT more = pred[] compare(step, limit), direction=LT
}

ENTRY main {
  x = f32[8,4] parameter(0)
  unused = f32[3] parameter(1)
  y = f32[8,4] parameter(2)
  sum = f32[8,4] add(x, y)
  zero = s32[] constant(0)
  first = (s32[], f32[8,4]) tuple(zero, sum)
  loop = (s32[], f32[8,4]) while(first), condition=condition, body=body
  result = f32[8,4] get-tuple-element(loop), index=1
  negated = f32[8,4] negate(result)
  exponential = f32[8,4] exponential(negated)
  ROOT all = (f32[8,4], f32[8,4], f32[8,4]) tuple(exponential, sum, x)
}
";

#[test]
fn a_loop_becomes_its_culprit() {
    let shrunk = shrink(&read(LAYERS), Limits::default(), &mut shows_if(has("sine")));
    assert!(shrunk.is_complete);
    assert_eq!(
        text(&shrunk.module),
        "HloModule layers, entry_computation_layout={(f32[1,1])->f32[1,1]}\n\n\
         ENTRY %body (carry: f32[1,1]) -> f32[1,1] {\n  %carry = f32[1,1] parameter(0)\n  \
         ROOT %sine = f32[1,1] sine(%carry)\n}\n\n"
    );
    assert!(shrunk.tries < 60, "{}", shrunk.tries);
}

#[test]
fn outputs_and_values_are_cut() {
    let module = read(LAYERS);
    let shrunk = shrink(&module, Limits::default(), &mut shows_if(has("exponential")));
    assert_eq!(instruction_count(&shrunk.module), 2, "{}", text(&shrunk.module));
    // A loop is needed: what it computes is not.
    let shrunk = shrink(&module, Limits::default(), &mut shows_if(has("while")));
    assert!(instruction_count(&shrunk.module) < instruction_count(&module) - 4, "{}", text(&shrunk.module));
}

#[test]
fn a_module_without_anything_to_drop_shrinks_too() {
    let module = read(
        "HloModule m

        ENTRY main {
          x = f32[8] parameter(0)
          sine = f32[8] sine(x)
          cosine = f32[8] cosine(sine)
          ROOT both = (f32[8], f32[8]) tuple(sine, cosine)
        }",
    );
    let shrunk = shrink(&module, Limits::default(), &mut shows_if(has("cosine")));
    assert_eq!(instruction_count(&shrunk.module), 2, "{}", text(&shrunk.module));
    // A program that breaks a compiler by what its result does not depend on keeps that.
    let dead = read(
        "HloModule m

        ENTRY main {
          x = f32[8] parameter(0)
          sine = f32[8] sine(x)
          ROOT cosine = f32[8] cosine(x)
        }",
    );
    let shrunk = shrink(&dead, Limits::default(), &mut shows_if(has("sine")));
    assert!(has("sine")(&shrunk.module) && instruction_count(&shrunk.module) <= 3, "{}", text(&shrunk.module));
}

#[test]
fn tries_are_bounded_and_can_be_stopped() {
    let module = read(LAYERS);
    let shrunk = shrink(&module, Limits { tries: 3 }, &mut shows_if(has("sine")));
    assert!(!shrunk.is_complete && shrunk.tries == 3);
    let shrunk = shrink(&module, Limits::default(), &mut |_| Verdict::Stop);
    assert!(!shrunk.is_complete && shrunk.tries == 1 && shrunk.steps.is_empty());
    assert_eq!(shrunk.module, module);
}

#[test]
fn what_cannot_be_shrunk_stays() {
    let module = read(LAYERS);
    let shrunk = shrink(&module, Limits::default(), &mut |_| Verdict::Gone);
    assert!(shrunk.is_complete && shrunk.module == module);
}

#[test]
fn broken_modules_are_no_reason_to_panic() {
    let mut broken = read(LAYERS);
    broken.entry_computation_id = 77;
    broken.entry_computation_name.clear();
    shrink(&broken, Limits { tries: 50 }, &mut |_| Verdict::Shows);
    let mut broken = read(LAYERS);
    for instruction in broken.computations.iter_mut().flat_map(|it| &mut it.instructions) {
        instruction.operand_ids.push(-3);
        instruction.called_computation_ids.push(1 << 40);
    }
    shrink(&broken, Limits { tries: 50 }, &mut |_| Verdict::Shows);
    shrink(&HloModuleProto::default(), Limits { tries: 50 }, &mut |_| Verdict::Shows);
}

#[test]
fn parts_of_devices_stay_in_their_region() {
    let module = read(
        "HloModule parts

        ENTRY main {
          x = f32[8] parameter(0), sharding={devices=[2]<=[2]}
          held = f32[8] custom-call(x), custom_call_target=\"Sharding\", sharding={devices=[2]<=[2]}
          part = f32[4] custom-call(held), custom_call_target=\"SPMDFullToShardShape\", sharding={manual}
          sine = f32[4] sine(part), sharding={manual}
          twice = f32[4] add(sine, sine), sharding={manual}
          kept = f32[4] custom-call(twice), custom_call_target=\"Sharding\", sharding={manual}
          ROOT whole = f32[8] custom-call(kept), custom_call_target=\"SPMDShardToFullShape\", sharding={devices=[2]<=[2]}
        }",
    );
    let shrunk = shrink(&module, Limits::default(), &mut shows_if(has("sine")));
    let text = text(&shrunk.module);
    assert!(text.contains("f32[4] constant"), "{text}");
    assert!(!text.contains("parameter"), "{text}");
}

#[test]
fn pairs_are_cut_alike() {
    let program = |difference: &str| {
        read(&format!(
            "HloModule pair
            ENTRY main {{
              a = f32[4] parameter(0)
              b = f32[4] parameter(1)
              s = f32[4] sine(a), metadata={{op_name=\"s\"}}
              c = f32[4] cosine(b), metadata={{op_name=\"c\"}}
              d = f32[4] subtract({difference}), metadata={{op_name=\"d\"}}
              e = f32[4] exponential(d), metadata={{op_name=\"e\"}}
              ROOT all = (f32[4], f32[4]) tuple(e, s)
            }}"
        ))
    };
    let subtracts = |module: &HloModuleProto| {
        let entry = module.computations.iter().find(|it| it.id == module.entry_computation_id)?;
        let found = entry.instructions.iter().find(|it| it.opcode == "subtract")?;
        let name = |id: &i64| entry.instructions.iter().find(|it| it.id == *id).map(|it| it.name.clone());
        Some(found.operand_ids.iter().map(name).collect::<Vec<_>>())
    };
    let mut verdict = |pair: &(HloModuleProto, HloModuleProto)| match (subtracts(&pair.0), subtracts(&pair.1)) {
        (Some(left), Some(right)) if left != right => Verdict::Shows,
        _ => Verdict::Gone,
    };
    let shrunk = shrink_pair(&(program("s, c"), program("c, s")), Limits::default(), &mut verdict);
    assert!(shrunk.is_complete);
    let (left, right) = (text(&shrunk.module.0), text(&shrunk.module.1));
    assert!(left.contains("subtract(%s, %c)") && left.contains("%s = f32[4] parameter(0)"), "{left}");
    assert!(right.contains("subtract(%c, %s)") && right.contains("%c = f32[4] parameter(1)"), "{right}");
    assert_eq!((instruction_count(&shrunk.module.0), instruction_count(&shrunk.module.1)), (3, 3));
}
