//! The functions that stand in the inner plugin's table, called by C.
//!
//! The inner plugin gets the caller's own arguments, whatever happens here: it sees every field, those of a newer API
//! too. Only for a program that is replaced, fields of these are changed for the time of the call.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;
use std::{ptr, slice};

use meshloom_hlo::message::counted;
use meshloom_pjrt::raw::{
    self, PJRT_Api, PJRT_Client_Compile_Args, PJRT_Client_PlatformName_Args, PJRT_Client_PlatformName_Args_STRUCT_SIZE,
    PJRT_Compile_Args, PJRT_Error, PJRT_Program, PJRT_TopologyDescription_PlatformName_Args,
    PJRT_TopologyDescription_PlatformName_Args_STRUCT_SIZE,
};

use super::decide::{decide, message, milliseconds};
use super::dump::write_outcome;
use super::request::Request;
use super::rewrite::{Decision, Reason, Replacement};
use super::say::{say, say_once};
use super::state::{Started, started};
use super::table::Replaced;

/// The functions to put into the table.
pub(crate) const FUNCTIONS: Replaced = Replaced { client_compile: Some(client_compile), compile: Some(compile_for) };

unsafe extern "C" fn client_compile(arguments: *mut PJRT_Client_Compile_Args) -> *mut PJRT_Error {
    // SAFETY: the caller passes what the header asks of this function.
    unsafe { compile(arguments) }
}

unsafe extern "C" fn compile_for(arguments: *mut PJRT_Compile_Args) -> *mut PJRT_Error {
    // SAFETY: as above.
    unsafe { compile(arguments) }
}

/// A function of the API.
type Function<A> = unsafe extern "C" fn(*mut A) -> *mut PJRT_Error;

/// The arguments of a function that compiles.
///
/// # Safety
/// `OFFSET` must be that of the function's field in [`PJRT_Api`], and the function must take `*mut Self`. `END` must
/// lie behind the fields that [`fields`](CompileArguments::fields) points to.
unsafe trait CompileArguments: Sized {
    const NAME: &'static str;
    const OFFSET: usize;
    const END: usize;
    const IS_AHEAD_OF_TIME: bool;

    /// Where the arguments have the program, the options and their length.
    fn fields(arguments: *mut Self) -> Fields;

    /// The platform that the program is compiled for.
    ///
    /// # Safety
    /// The arguments must be what the header asks of the function, and `inner` the table of the plugin.
    unsafe fn platform(arguments: *mut Self, inner: *const PJRT_Api) -> Option<String>;
}

/// Pointers into arguments.
#[derive(Clone, Copy)]
struct Fields {
    program: *mut *const PJRT_Program,
    options: *mut *const c_char,
    options_size: *mut usize,
}

macro_rules! compile_arguments {
    ($arguments:ident $function:ident $is_ahead_of_time:literal $subject:ident $platform:ident $of:ident $size:ident) => {
        // SAFETY: the offset is that of the field of the same name, whose type is a function over this struct (the
        // constant below would not compile otherwise), and `compile_options_size` is the last of the fields.
        unsafe impl CompileArguments for $arguments {
            const NAME: &'static str = stringify!($function);
            const OFFSET: usize = offset_of!(PJRT_Api, $function);
            const END: usize = offset_of!($arguments, compile_options_size) + size_of::<usize>();
            const IS_AHEAD_OF_TIME: bool = $is_ahead_of_time;

            fn fields(arguments: *mut Self) -> Fields {
                // SAFETY: this only takes addresses of fields of arguments that are there.
                unsafe {
                    Fields {
                        program: &raw mut (*arguments).program,
                        options: &raw mut (*arguments).compile_options,
                        options_size: &raw mut (*arguments).compile_options_size,
                    }
                }
            }

            unsafe fn platform(arguments: *mut Self, inner: *const PJRT_Api) -> Option<String> {
                let offset = offset_of!(PJRT_Api, $platform);
                // SAFETY: the offset is that of a function over these arguments; the subject is live, as the caller
                // promises, and so is its name.
                unsafe {
                    let function: Function<$of> = raw::function(inner, offset)?;
                    let subject = (&raw const (*arguments).$subject).read();
                    let mut asked = $of { struct_size: $size as usize, $subject: subject, ..Default::default() };
                    raw::check(inner, stringify!($platform), function(&mut asked)).ok()?;
                    Some(text(asked.platform_name, asked.platform_name_size))
                }
            }
        }

        const _: fn(&PJRT_Api) -> Option<Function<$arguments>> = |api| api.$function;
        const _: fn(&PJRT_Api) -> Option<Function<$of>> = |api| api.$platform;
    };
}

compile_arguments! {
    PJRT_Client_Compile_Args PJRT_Client_Compile false
    client PJRT_Client_PlatformName PJRT_Client_PlatformName_Args PJRT_Client_PlatformName_Args_STRUCT_SIZE
}
compile_arguments! {
    PJRT_Compile_Args PJRT_Compile true
    topology PJRT_TopologyDescription_PlatformName PJRT_TopologyDescription_PlatformName_Args
    PJRT_TopologyDescription_PlatformName_Args_STRUCT_SIZE
}

/// Bytes that C has given.
///
/// # Safety
/// `bytes` must be null or have `size` bytes that stay as they are for the life of the slice.
unsafe fn bytes<'a>(bytes: *const c_char, size: usize) -> &'a [u8] {
    match bytes.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { slice::from_raw_parts(bytes.cast(), size) },
    }
}

/// Text that C has given.
///
/// # Safety
/// As of [`bytes`].
unsafe fn text(start: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { bytes(start, size) }).into_owned()
}

/// A program that is about to be compiled, and the decision about it.
struct Judged {
    decision: Decision,
    /// For people: its name and its devices.
    name: String,
    milliseconds: f64,
    folder: Option<PathBuf>,
}

/// Compiles a program, or another in its place.
///
/// # Safety
/// The arguments must be what the header asks of the function.
unsafe fn compile<A: CompileArguments>(arguments: *mut A) -> *mut PJRT_Error {
    let inner = started().and_then(|started| {
        // SAFETY: the table is the inner plugin's; the offset is that of a function over these arguments.
        Some((started, unsafe { raw::function::<Function<A>>(started.inner, A::OFFSET) }?))
    });
    let Some((started, inner)) = inner else {
        // A caller has this function from the table, which is made after both.
        say_once(A::NAME, format_args!("internal error: {} is called before the plugin has started", A::NAME));
        return ptr::null_mut();
    };
    // SAFETY: the caller's promise.
    let judged = catch_unwind(AssertUnwindSafe(|| unsafe { judge(started, arguments) }));
    let start = Instant::now();
    let (error, refused) = match &judged {
        Ok(Judged { decision: Decision::Replaced(replacement), .. }) => {
            // SAFETY: the caller's promise; `judge` has looked at the sizes of the arguments.
            unsafe { compile_replaced(started, inner, arguments, replacement) }
        }
        // SAFETY: the caller's promise.
        _ => (unsafe { inner(arguments) }, None),
    };
    let took = milliseconds(start);
    let told = catch_unwind(AssertUnwindSafe(|| {
        let judged = judged.unwrap_or_else(|panic| Judged {
            decision: Decision::passed_on(Reason::Panicked(message(&*panic))),
            name: "a program".to_owned(),
            milliseconds: 0.0,
            folder: None,
        });
        tell(started, &judged, took, refused.as_deref(), error.is_null());
    }));
    if told.is_err() {
        say_once("telling", "it panicked while it wrote its log; please report this");
    }
    error
}

/// Has the rewriting decide about a program.
///
/// # Safety
/// As of [`compile`].
unsafe fn judge<A: CompileArguments>(started: &Started, arguments: *mut A) -> Judged {
    // SAFETY: the caller's promise.
    let Some(mut request) = (unsafe { request(arguments) }) else {
        let decision = Decision::passed_on(Reason::Call);
        return Judged { decision, name: "a program".to_owned(), milliseconds: 0.0, folder: None };
    };
    // SAFETY: the caller's promise; `request` has looked at the size of the arguments.
    request.platform = unsafe { A::platform(arguments, started.inner) };
    request.is_ahead_of_time = A::IS_AHEAD_OF_TIME;
    request.is_watched = started.log || started.dump.is_some();
    let (decision, milliseconds) = decide(&*started.rewrite, &request);
    let folder = started.dump.as_ref().and_then(|dump| {
        let written = dump.write(&request, &decision, milliseconds);
        written
            .map_err(|error| say_once("dump", format_args!("cannot write a program to MESHLOOM_PLUGIN_DUMP: {error}")))
            .ok()
    });
    let module = decision.summary().map_or("a program", |summary| &summary.module);
    let devices = request.device_count().and_then(|count| usize::try_from(count).ok());
    let devices = devices.map_or_else(|| "unknown devices".to_owned(), |count| counted(count, "device"));
    Judged { name: format!("{module} for {devices}"), decision, milliseconds, folder }
}

/// The request that arguments make; `None` if they are shorter than the API has them.
///
/// # Safety
/// As of [`compile`]. The request must not be used after the call.
unsafe fn request<'a, A: CompileArguments>(arguments: *mut A) -> Option<Request<'a>> {
    // SAFETY: arguments and program begin with their sizes, and fields are read only where they reach past them.
    unsafe {
        if arguments.is_null() || arguments.cast::<usize>().read() < A::END {
            return None;
        }
        let fields = A::fields(arguments);
        let program = fields.program.read();
        let end = offset_of!(PJRT_Program, format_size) + size_of::<usize>();
        if program.is_null() || program.cast::<usize>().read() < end {
            return None;
        }
        let format = text((&raw const (*program).format).read(), (&raw const (*program).format_size).read());
        let code = bytes((&raw const (*program).code).read(), (&raw const (*program).code_size).read());
        Some(Request::new(&format, code, bytes(fields.options.read(), fields.options_size.read())))
    }
}

/// Compiles another program; the given one, if the inner plugin refuses the other. Also returns why it did.
///
/// # Safety
/// As of [`compile`], and a [`request`] must have been made of the arguments.
unsafe fn compile_replaced<A: CompileArguments>(
    started: &Started,
    inner: Function<A>,
    arguments: *mut A,
    replacement: &Replacement,
) -> (*mut PJRT_Error, Option<String>) {
    let fields = A::fields(arguments);
    let format = replacement.format.name();
    // SAFETY: the fields are those of live arguments. The program is copied with all its bytes, those of a newer API
    // too; the copy and what it points to live until the call is over, and so do the options. The plugin may write to
    // the code only if the options allow it (`allow_in_place_mlir_modification`), so a copy is given.
    unsafe {
        let given = (fields.program.read(), fields.options.read(), fields.options_size.read());
        let size = given.0.cast::<usize>().read();
        let mut words = vec![0_u64; size.div_ceil(size_of::<u64>())];
        ptr::copy_nonoverlapping(given.0.cast::<u8>(), words.as_mut_ptr().cast(), size);
        let program: *mut PJRT_Program = words.as_mut_ptr().cast();
        let mut code = replacement.code.clone();
        (&raw mut (*program).code).write(code.as_mut_ptr().cast());
        (&raw mut (*program).code_size).write(code.len());
        (&raw mut (*program).format).write(format.as_ptr().cast());
        (&raw mut (*program).format_size).write(format.len());
        fields.program.write(program);
        fields.options.write(replacement.options.as_ptr().cast());
        fields.options_size.write(replacement.options.len());
        let error = inner(arguments);
        fields.program.write(given.0);
        fields.options.write(given.1);
        fields.options_size.write(given.2);
        match raw::check(started.inner, A::NAME, error) {
            Ok(()) => (ptr::null_mut(), None),
            Err(refused) => (inner(arguments), Some(refused.to_string())),
        }
    }
}

/// Tells a person what was done with a program.
fn tell(started: &Started, judged: &Judged, took: f64, refused: Option<&str>, is_compiled: bool) {
    if let Some(folder) = &judged.folder
        && let Err(error) = write_outcome(folder, took, refused, is_compiled)
    {
        say_once("outcome", format_args!("cannot write what became of a program to {}: {error}", folder.display()));
    }
    let (about, done) = match (&judged.decision, refused) {
        (Decision::PassedOn { reason, line, .. }, _) => {
            let line = line.as_ref().map(|line| format!(" ({line})")).unwrap_or_default();
            let about = (!reason.is_quiet()).then(|| reason.to_string());
            (about, format!("passed on as it is, because {reason}{line}"))
        }
        (Decision::Replaced(_), None) => (None, "replaced".to_owned()),
        (Decision::Replaced(_), Some(why)) => {
            (Some(why.to_owned()), format!("passed on as it is, because its replacement is refused: {why}"))
        }
    };
    let name = &judged.name;
    if started.log {
        let compiled = if is_compiled { "compiled" } else { "refused" };
        say(format_args!("{name}: {done}; decided in {:.1} ms, {compiled} in {took:.1} ms", judged.milliseconds));
    } else if let Some(about) = about {
        say_once(&about, format_args!("{name}: {done}; this is said once"));
    }
}
