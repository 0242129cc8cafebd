use meshloom::hlo::proto::stack_frame_index_proto::{FileLocation, StackFrame};
use meshloom::hlo::proto::{HloInstructionProto, HloModuleProto, OpMetadata, StackFrameIndexProto};
use meshloom::hlo::source::{SourceLine, Sources, op_name, scope};

fn with(metadata: OpMetadata) -> HloInstructionProto {
    HloInstructionProto { metadata: Some(Box::new(metadata)), ..Default::default() }
}

fn module(frames: &[(i32, i32)]) -> HloModuleProto {
    let location = |line| FileLocation { file_name_id: 1, function_name_id: 1, line, ..Default::default() };
    let frame = |&(file_location_id, parent_frame_id): &(i32, i32)| StackFrame { file_location_id, parent_frame_id };
    let index = StackFrameIndexProto {
        file_names: vec!["model.py".into()],
        function_names: vec!["layer".into()],
        file_locations: vec![location(10), location(20)],
        stack_frames: frames.iter().map(frame).collect(),
    };
    HloModuleProto { stack_frame_index: Some(index), ..Default::default() }
}

#[test]
fn lines_of_both_forms() {
    let module = module(&[(1, 0), (2, 1)]);
    let sources = Sources::of(&module);
    let line = |line| SourceLine { file: "model.py", line, function: "layer" };
    let framed = |id| with(OpMetadata { stack_frame_id: id, ..Default::default() });
    assert_eq!(sources.line(&framed(2)), Some(line(20)));
    assert_eq!(sources.stack(&framed(2)), [line(20), line(10)]);
    let plain = with(OpMetadata { source_file: "a.py".into(), source_line: 3, ..Default::default() });
    assert_eq!(sources.line(&plain).map(|line| line.to_string()).as_deref(), Some("a.py:3"));
    assert_eq!(sources.stack(&plain).len(), 1);
    for nothing in [framed(0), framed(3), framed(-1), HloInstructionProto::default()] {
        assert_eq!((sources.line(&nothing), sources.stack(&nothing)), (None, vec![]));
    }
}

#[test]
fn an_outermost_frame_may_be_its_own_parent() {
    let module = module(&[(1, 1), (2, 1)]);
    let instruction = with(OpMetadata { stack_frame_id: 2, ..Default::default() });
    assert_eq!(Sources::of(&module).stack(&instruction).len(), 2);
}

#[test]
fn a_circle_of_frames_ends() {
    let module = module(&[(1, 2), (2, 1)]);
    let instruction = with(OpMetadata { stack_frame_id: 1, ..Default::default() });
    assert_eq!(Sources::of(&module).stack(&instruction).len(), 256);
}

#[test]
fn scopes() {
    let named = |name: &str| with(OpMetadata { op_name: name.into(), ..Default::default() });
    for (name, expected) in [
        ("jit(step)/layer/dot_general", "jit(step)/layer"),
        ("jit(f)/reshape[sizes=a/b]", "jit(f)"),
        ("dot_general", ""),
        ("", ""),
    ] {
        let instruction = named(name);
        assert_eq!((op_name(&instruction), scope(&instruction)), (name, expected));
    }
    assert_eq!(scope(&HloInstructionProto::default()), "");
}
