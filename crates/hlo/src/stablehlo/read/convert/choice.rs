//! The function that the program is, among those of a text. Modules may be in modules, each with functions of its own.

use rustc_hash::FxHashSet;

use super::super::attribute::{Attribute, Attributes, Value};
use super::super::operation::Operation;
use crate::parse::{Result, fault};
use crate::suggest::did_you_mean;

/// A module, or the text around all modules.
#[derive(Clone, Copy)]
pub(super) struct ModuleScope<'a, 'o> {
    pub(super) attributes: Option<&'o Attributes<'a>>,
    pub(super) operations: &'o [Operation<'a>],
}

impl ModuleScope<'_, '_> {
    /// The name of a function in it, among those of other modules: a module has a name, or the number of its place.
    fn label(&self, number: usize, function: &str) -> String {
        let name = self.attributes.and_then(|attributes| attributes.get("sym_name"));
        match name.map(|name| &name.value) {
            Some(Value::Symbol(name)) => format!("{name}::{function}"),
            _ => format!("{number}::{function}"),
        }
    }
}

/// A function of a text.
struct Function<'a, 'o> {
    name: &'o str,
    /// The name by which it is told from those of other modules.
    label: String,
    scope: usize,
    operation: &'o Operation<'a>,
}

pub(super) struct Chosen<'a, 'o> {
    pub(super) entry: &'o Operation<'a>,
    /// The module that has it.
    pub(super) scope: ModuleScope<'a, 'o>,
    /// The ops of the outermost module, if that is another one.
    pub(super) around: &'o [Operation<'a>],
}

/// Whether an op is a function with a body.
pub(super) fn is_function(operation: &Operation<'_>) -> bool {
    operation.name == "func.func" && !operation.regions.is_empty()
}

/// The function that `name` says; else the only @main, or that of the outermost module; else the only public one, the
/// only public one that no other function uses, or the only one.
pub(super) fn choose<'a, 'o>(operations: &'o [Operation<'a>], name: Option<&str>) -> Result<Chosen<'a, 'o>> {
    let scopes = scopes(operations);
    let has_function = |scope: &&ModuleScope<'a, 'o>| scope.operations.iter().any(is_function);
    let is_one = scopes.iter().filter(has_function).take(2).count() < 2;
    let mut all: Vec<Function<'a, 'o>> = Vec::new();
    for (scope, module) in scopes.iter().enumerate() {
        for operation in module.operations.iter().filter(|operation| is_function(operation)) {
            let name = operation.symbol(&["sym_name"])?;
            all.push(Function {
                name,
                label: if is_one { name.into() } else { module.label(scope, name) },
                scope,
                operation,
            });
        }
    }
    let called = |name: &str| all.iter().filter(|it| it.name == name || it.label == name).collect::<Vec<_>>();
    let public: Vec<_> = all.iter().filter(|it| is_public(it.operation)).collect();
    let mains = called("main");
    let found = match (name, mains.as_slice(), public.as_slice(), all.as_slice()) {
        (Some(name), ..) => called(name).first().copied(),
        (None, [only], ..) => Some(*only),
        (None, [first, ..], ..) if first.scope == 0 => Some(*first),
        (None, [], [only], _) => Some(*only),
        (None, [], [], [only]) => Some(only),
        (None, [], [_, _, ..], _) => only_unused(&all, &public),
        _ => None,
    };
    let Some(&Function { scope: number, operation: entry, .. }) = found else {
        let first = scopes.iter().find_map(|scope| scope.operations.iter().find(|it| it.name != "builtin.module"));
        return refuse(first.or(operations.first()), name, &all, &public);
    };
    let around = if number == 0 { &[] } else { scopes[0].operations };
    Ok(Chosen { entry, scope: scopes[number], around })
}

/// The only public function that no other function uses.
fn only_unused<'f, 'a, 'o>(
    all: &'f [Function<'a, 'o>],
    public: &[&'f Function<'a, 'o>],
) -> Option<&'f Function<'a, 'o>> {
    let mut used = FxHashSet::default();
    for function in all {
        let mut symbols = Vec::new();
        used_symbols(function.operation, &mut symbols);
        used.extend(symbols.into_iter().filter(|symbol| *symbol != function.name));
    }
    let mut unused = public.iter().filter(|function| !used.contains(function.name));
    unused.next().filter(|_| unused.next().is_none()).copied()
}

/// Appends the symbols in the attributes of an op and of those in its regions.
fn used_symbols<'o>(operation: &'o Operation<'_>, found: &mut Vec<&'o str>) {
    let symbol = |attribute: &'o Attribute<'_>| match &attribute.value {
        Value::Symbol(symbol) => Some(symbol.as_str()),
        _ => None,
    };
    for (_, attribute) in operation.attributes.0.iter().filter(|(name, _)| name != "sym_name") {
        match &attribute.value {
            Value::List(items) => found.extend(items.iter().filter_map(symbol)),
            _ => found.extend(symbol(attribute)),
        }
    }
    let inner = operation.regions.iter().flat_map(|region| &region.operations);
    inner.for_each(|operation| used_symbols(operation, found));
}

/// The modules of a text, the outermost first. A text may have functions without a module around them.
fn scopes<'a, 'o>(operations: &'o [Operation<'a>]) -> Vec<ModuleScope<'a, 'o>> {
    let inside = |module: &'o Operation<'a>| ModuleScope {
        attributes: Some(&module.attributes),
        operations: module.regions.first().map_or(&[], |region| region.operations.as_slice()),
    };
    let mut found = match operations {
        [module] if module.name == "builtin.module" => vec![inside(module)],
        operations => vec![ModuleScope { attributes: None, operations }],
    };
    let mut next = 0;
    while let Some(scope) = found.get(next).copied() {
        found.extend(scope.operations.iter().filter(|operation| operation.name == "builtin.module").map(inside));
        next += 1;
    }
    found
}

fn is_public(operation: &Operation<'_>) -> bool {
    operation.attributes.get("sym_visibility").is_none_or(|visibility| {
        !matches!(&visibility.value, Value::Word("private"))
            && !matches!(&visibility.value, Value::String(word) if word == b"private")
    })
}

/// Says what there is to choose from.
#[cold]
fn refuse<'a, 'o, T>(
    first: Option<&'o Operation<'a>>,
    name: Option<&str>,
    all: &[Function<'a, 'o>],
    public: &[&Function<'a, 'o>],
) -> Result<T> {
    const SHOWN: usize = 12;
    let position = all.first().map(|it| it.operation).or(first).map_or(0, |it| it.position);
    let listed = |names: Vec<&str>| {
        let rest = match names.len().saturating_sub(SHOWN) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("@{name}")).collect();
        format!("{}{rest}", shown.join(", "))
    };
    let names: Vec<&str> = all.iter().map(|it| it.label.as_str()).collect();
    let message = match (name, public.len()) {
        _ if all.is_empty() => match first.filter(|first| first.name != "builtin.module") {
            Some(first) => format!("expected a function @main, or another with a body; found {}", first.written()),
            None => "expected a function @main, or another with a body".to_owned(),
        },
        (Some(name), _) => {
            let near = did_you_mean(name, names.iter().copied());
            format!("there is no function @{name}{near}; there are {}", listed(names))
        }
        (None, 0) => format!("none of the functions is public or @main; {CHOOSE}: {}", listed(names)),
        (None, count) => {
            let mains = all.iter().filter(|it| it.name == "main").count();
            let why = if mains > 1 { format!("{mains} modules have a @main") } else { "there is no @main".to_owned() };
            format!(
                "{why}, and {count} functions are public; {CHOOSE}: {}",
                listed(public.iter().map(|it| it.label.as_str()).collect())
            )
        }
    };
    fault(position, message)
}

const CHOOSE: &str = "choose one with --function of hlo-dump, or `read::read_function`";
