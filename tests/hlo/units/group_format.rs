use meshloom::hlo::GroupFormat;

/// A plugin reads the form that is chosen for it, and none that is more compact.
#[test]
fn what_is_chosen_is_read() {
    let versions = [
        ((0, 80), GroupFormat::Lists),
        ((0, 81), GroupFormat::IotaInList),
        ((0, 82), GroupFormat::Lists),
        ((0, 105), GroupFormat::Lists),
        ((0, 106), GroupFormat::Iota),
        ((0, 116), GroupFormat::Iota),
        ((1, 0), GroupFormat::Lists),
        ((1, 106), GroupFormat::Lists),
    ];
    for (version, expected) in versions {
        assert_eq!(GroupFormat::read_by(version), expected, "{version:?}");
        assert!(expected.is_read_by(version), "{version:?}");
        assert!(GroupFormat::Lists.is_read_by(version), "{version:?}");
    }
}
