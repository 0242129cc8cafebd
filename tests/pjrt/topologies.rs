//! Topologies as text.

use meshloom::pjrt::Topology;

#[test]
fn texts_are_read_and_written() {
    let cases = [
        ("v5e:2x4", "tpu", 8, 1),
        ("v5p:8x8x8", "tpu", 512, 1),
        ("tpu7x:2x2x1:slices=2", "tpu", 8, 2),
        ("h100:1x1x8", "cuda", 8, 1),
        ("b200:2x4x8", "cuda", 64, 2),
        ("cpu:8", "cpu", 8, 1),
    ];
    for (text, platform, chips, slices) in cases {
        let topology = Topology::parse(text).expect(text);
        assert_eq!(topology.to_string(), text);
        assert_eq!((topology.platform().name(), topology.chip_count()), (platform, chips));
        assert_eq!(topology.slice_count(), slices);
    }
    assert_eq!(Topology::parse("v6e:4x4:slices=1").expect("one slice").to_string(), "v6e:4x4");
}

#[test]
fn wrong_texts_say_what_to_write() {
    let cases = [
        (
            "",
            "there is no chip \"\"; there are v2, v3, v4, v5e, v5p, v6e, tpu7x, a100-40g, a100, h100, h200, b200, cpu",
        ),
        ("tpu6x:2x4", "there is no chip \"tpu6x\" (did you mean \"tpu7x\"?)"),
        ("v5x:2x4", "there is no chip \"v5x\" (did you mean \"v5e\" or \"v5p\"?)"),
        ("gpu:8", "there is no chip \"gpu\"; there are v2"),
        ("v5e", "it has no shape; write v5e:2x4"),
        ("v5e:", "\"\" in the shape \"\" is not a number from 1 to 1024; write v5e:2x4"),
        ("v5e:2x-4", "\"-4\" in the shape \"2x-4\" is not a number"),
        ("v5p:99999999999999999999x1x1", "is not a number from 1 to 1024; write v5p:2x2x1"),
        ("v5e:2x4x1", "the shape has 3 numbers, expected 2, chips along x and y"),
        ("v5p:8x8", "the shape has 2 numbers, expected 3, chips along x, y and z"),
        ("h100:8", "the shape has 1 numbers, expected 3, slices x hosts x GPUs of a host"),
        ("h100:1x1x8:slices=2", "a GPU topology's first number is that of slices"),
        ("cpu:8:slices=2", "there are no slices of a CPU"),
        ("cpu:2x4", "the shape has 2 numbers, expected 1, virtual devices"),
        ("v5e:2x4:slice=2", "there is no setting \"slice\" (did you mean \"slices\"?)"),
        ("v5e:2x4:slices", "slices= is not a number from 1 to 1024"),
        ("v5e:2x4:slices=0", "slices=0 is not a number"),
    ];
    for (text, expected) in cases {
        let error = Topology::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(&format!("\"{text}\" is not a topology: ")), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}
