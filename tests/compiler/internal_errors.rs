//! Reports of defects of the compiler itself.

use meshloom::ir::{InternalError, OpError};

#[test]
fn an_internal_error_says_what_to_report() {
    let (error, line) = (InternalError::new("concatenate", "one result"), line!());
    let expected = format!(
        "internal error at {}:{line}: `concatenate`: expected one result; this is a defect of meshloom, please report \
         it with the program that shows it",
        file!()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(OpError::from(error).to_string(), expected);
}
