use meshloom::hlo::read::Limits;
use meshloom::hlo::xplane::{ProfileError, XPlane, XSpace};
use prost::Message;

fn read(bytes: &[u8]) -> Result<XSpace, ProfileError> {
    XSpace::read(bytes, &Limits::default())
}

#[test]
fn what_is_no_profile_is_refused() {
    assert_eq!(read(b""), Err(ProfileError::Other));
    assert_eq!(read(b"HloModule m"), Err(ProfileError::Other));
    let plane = XPlane { name: "/host:CPU".to_owned(), ..XPlane::default() };
    let space = XSpace { planes: vec![plane], hostnames: vec!["host".to_owned()] };
    let bytes = space.encode_to_vec();
    assert!(matches!(read(&bytes[..bytes.len() - 1]), Err(ProfileError::Broken { .. })));
    assert_eq!(read(&bytes), Ok(space));
    // Profiles of one run, of several sources, are one after another.
    assert_eq!(read(&[bytes.clone(), bytes].concat()).map(|space| space.planes.len()), Ok(2));
}

/// Two bytes are an empty event, a plane, or an entry of a table.
#[test]
fn a_profile_of_nothing_is_refused() {
    let named = XPlane { name: "/host:CPU".to_owned(), ..XPlane::default() };
    let empty = XSpace { planes: [vec![named], vec![XPlane::default(); 1 << 19]].concat(), hostnames: Vec::new() };
    let error = read(&empty.encode_to_vec()).expect_err("too large").to_string();
    assert!(error.contains("--max-size of hlo-dump, raises it"), "{error}");
}
