use meshloom::hlo::read::Limits;
use meshloom::hlo::xplane::{ProfileError, XEvent, XLine, XPlane, XSpace, XStat};
use prost::Message;

#[test]
fn what_is_no_profile_is_refused() {
    assert_eq!(XSpace::read(b""), Err(ProfileError::Other));
    assert_eq!(XSpace::read(b"HloModule m"), Err(ProfileError::Other));
    let plane = XPlane { name: "/host:CPU".to_owned(), ..XPlane::default() };
    let space = XSpace { planes: vec![plane], hostnames: vec!["host".to_owned()] };
    let bytes = space.encode_to_vec();
    assert!(matches!(XSpace::read(&bytes[..bytes.len() - 1]), Err(ProfileError::Broken { .. })));
    assert_eq!(XSpace::read(&bytes), Ok(space));
    // Profiles of one run, of several sources, are one after another.
    assert_eq!(XSpace::read(&[bytes.clone(), bytes].concat()).map(|space| space.planes.len()), Ok(2));
}

#[test]
fn a_profile_takes_no_more_memory_than_other_input() {
    let ratio = Limits::default().decoded_ratio as usize;
    for size in [size_of::<XPlane>(), size_of::<XLine>(), size_of::<XEvent>(), size_of::<XStat>()] {
        assert!(size <= 2 * ratio, "{size}");
    }
}
