//! The names that the files of a crate define and use: which file needs which other, and by which names.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// For each file and one that it needs: the names that it uses of it.
pub(super) type Needs = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// The words in front of the name of an item.
const ITEMS: [&str; 9] = ["const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union"];

/// A crate: its modules; the first is the crate itself.
#[derive(Default)]
pub(super) struct Names {
    modules: Vec<Module>,
    /// For each macro: the names that the items of its expansion always have.
    expansions: BTreeMap<String, BTreeSet<String>>,
}

/// A module, of a file of its own or in that of another.
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    names: BTreeMap<String, Vec<Meaning>>,
    globs: Vec<Vec<String>>,
    imports: Vec<Import>,
    /// The paths that its code has elsewhere.
    paths: BTreeSet<Vec<String>>,
    /// The macros that it defines, and those that it calls where items stand.
    macros: BTreeSet<String>,
    item_macros: BTreeSet<String>,
    /// The macros that it calls by a single name.
    calls: BTreeSet<String>,
}

/// The item that a name in a module stands for.
enum Meaning {
    /// An item of this module: of another for a macro that is exported, which the crate itself shows.
    Item(usize),
    Module(usize),
    Import(Vec<String>),
}

struct Import {
    path: Vec<String>,
    is_public: bool,
}

/// The item that a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// An item of this module.
    Item(usize),
    Module(usize),
}

/// The names on the way to a target, by which imports that lead to each other come to an end.
type Seen = HashSet<(usize, String, usize)>;

impl Names {
    /// Reads a crate from the file of its root, whose modules are in `folder`.
    pub(super) fn read(root: &Path, folder: &Path) -> Names {
        let mut names = Names::default();
        names.add_file(root, None, folder);
        names
    }

    fn add_file(&mut self, path: &Path, parent: Option<usize>, folder: &Path) -> usize {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.add_module(path, parent, &file.items, folder)
    }

    fn add_module(&mut self, file: &Path, parent: Option<usize>, items: &[syn::Item], folder: &Path) -> usize {
        let id = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            names: BTreeMap::new(),
            globs: Vec::new(),
            imports: Vec::new(),
            paths: BTreeSet::new(),
            macros: BTreeSet::new(),
            item_macros: BTreeSet::new(),
            calls: BTreeSet::new(),
        });
        for item in items {
            match item {
                syn::Item::Mod(module) => self.add_child(id, file, module, folder),
                syn::Item::Macro(item) => self.add_macro(id, item),
                item => {
                    if let Some(name) = name_of(item) {
                        self.define(id, name.to_string(), Meaning::Item(id));
                    }
                }
            }
        }
        let mut uses = Uses { module: &mut self.modules[id], locals: BTreeSet::new() };
        items.iter().for_each(|item| uses.visit_item(item));
        id
    }

    fn add_child(&mut self, id: usize, file: &Path, module: &syn::ItemMod, folder: &Path) {
        let name = module.ident.to_string();
        let below = folder.join(&name);
        let children = match &module.content {
            Some((_, items)) => vec![self.add_module(file, Some(id), items, &below)],
            None => {
                let paths = files_of(module, file, folder);
                paths.iter().map(|path| self.add_file(path, Some(id), &below)).collect()
            }
        };
        children.into_iter().for_each(|child| self.define(id, name.clone(), Meaning::Module(child)));
    }

    fn add_macro(&mut self, id: usize, item: &syn::ItemMacro) {
        let Some(name) = &item.ident else {
            defined_in(item.mac.tokens.clone()).into_iter().for_each(|name| self.define(id, name, Meaning::Item(id)));
            let name = item.mac.path.segments.last().map(|segment| segment.ident.to_string());
            self.modules[id].item_macros.extend(name);
            return;
        };
        let groups = item.mac.tokens.clone().into_iter().filter_map(|token| match token {
            TokenTree::Group(group) => Some(group.stream()),
            _ => None,
        });
        self.expansions.entry(name.to_string()).or_default().extend(groups.flat_map(defined_in));
        self.modules[id].macros.insert(name.to_string());
        self.define(id, name.to_string(), Meaning::Item(id));
        if id > 0 && item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
            self.define(0, name.to_string(), Meaning::Item(id));
        }
    }

    fn define(&mut self, id: usize, name: String, meaning: Meaning) {
        self.modules[id].names.entry(name).or_default().push(meaning);
    }

    /// Returns the meaning of a name in a module.
    fn lookup(&self, id: usize, name: &str, seen: &mut Seen) -> BTreeSet<Target> {
        let module = &self.modules[id];
        let mut found = BTreeSet::new();
        for (index, meaning) in module.names.get(name).into_iter().flatten().enumerate() {
            match meaning {
                Meaning::Item(of) => found.extend([Target::Item(*of)]),
                Meaning::Module(child) => found.extend([Target::Module(*child)]),
                Meaning::Import(path) => {
                    if seen.insert((id, name.to_owned(), index)) {
                        found.extend(self.resolve(id, path, seen));
                    }
                }
            }
        }
        let mut expansions = module.item_macros.iter().filter_map(|name| self.expansions.get(name));
        if found.is_empty() && expansions.any(|names| names.contains(name)) {
            found.insert(Target::Item(id));
        }
        if found.is_empty() {
            for (index, glob) in module.globs.iter().enumerate() {
                if seen.insert((id, format!("{name} of *"), index)) {
                    for target in self.resolve(id, glob, seen) {
                        if let Target::Module(target) = target {
                            found.extend(self.lookup(target, name, seen));
                        }
                    }
                }
            }
        }
        found
    }

    /// Returns the item that a path in a module leads to; nothing if it leads to another crate.
    fn resolve(&self, id: usize, path: &[String], seen: &mut Seen) -> BTreeSet<Target> {
        let mut at = BTreeSet::from([Target::Module(id)]);
        for (index, name) in path.iter().enumerate() {
            let modules = |at: &BTreeSet<Target>| -> Vec<usize> {
                at.iter().filter_map(|&target| if let Target::Module(id) = target { Some(id) } else { None }).collect()
            };
            let next: BTreeSet<Target> = match name.as_str() {
                // The crate is the first of its modules.
                "crate" => BTreeSet::from([Target::Module(0)]),
                "self" => at,
                "super" => {
                    let parents = modules(&at).into_iter().filter_map(|id| self.modules[id].parent);
                    parents.map(Target::Module).collect()
                }
                _ => {
                    let mut next: BTreeSet<Target> =
                        at.iter().copied().filter(|it| matches!(it, Target::Item(_))).collect();
                    for module in modules(&at) {
                        let found = self.lookup(module, name, seen);
                        if index > 0 && found.is_empty() && self.may_expand_to(module, name) {
                            next.insert(Target::Item(module));
                        }
                        next.extend(found);
                    }
                    next
                }
            };
            // A module and a function may have one name: only the module has something below it.
            let has_modules = next.iter().any(|target| matches!(target, Target::Module(_)));
            at = next;
            if index + 1 < path.len() && has_modules {
                at.retain(|target| matches!(target, Target::Module(_)));
            }
        }
        at
    }

    /// Whether a name that a module does not show may come from one of its macros.
    fn may_expand_to(&self, id: usize, name: &str) -> bool {
        let module = &self.modules[id];
        !module.names.contains_key(name) && !module.item_macros.is_empty()
    }

    fn is_within(&self, id: usize, above: usize) -> bool {
        id == above || self.modules[id].parent.is_some_and(|parent| self.is_within(parent, above))
    }

    /// Returns which file needs which other, and the paths of the crate that lead nowhere, where there is something
    /// that this reading of names does not understand. A module that only shows what is below it does not need it.
    pub(super) fn needs(&self) -> (Needs, Vec<String>) {
        let (mut needs, mut lost) = (Needs::new(), Vec::new());
        for (id, module) in self.modules.iter().enumerate() {
            let mut add = |target: Target, path: &[String]| {
                let Target::Item(target) = target else { return };
                let to = &self.modules[target].file;
                if *to != module.file {
                    let item = path.iter().find(|name| name.starts_with(char::is_uppercase));
                    let name = item.or(path.last()).cloned().unwrap_or_default();
                    needs.entry((module.file.clone(), to.clone())).or_default().insert(name);
                }
            };
            let imports = module.imports.iter().map(|import| (&import.path, import.is_public));
            for (path, is_shown) in imports.chain(module.paths.iter().map(|path| (path, false))) {
                let targets = self.resolve(id, path, &mut Seen::new());
                if targets.is_empty() && is_own(path) && !self.is_foreign(id, path) {
                    lost.push(format!("{}: {}", module.file.display(), path.join("::")));
                }
                let shows = |target: &Target| matches!(target, Target::Item(it) if is_shown && self.is_within(*it, id));
                targets.into_iter().filter(|target| !shows(target)).for_each(|target| add(target, path));
            }
            for name in &module.calls {
                if self.lookup(id, name, &mut Seen::new()).is_empty() {
                    let by_text = self.modules.iter().position(|module| module.macros.contains(name));
                    by_text.into_iter().for_each(|by| add(Target::Item(by), &[format!("{name}!")]));
                }
            }
        }
        (needs, lost)
    }

    /// Whether a path goes through an import of another crate.
    fn is_foreign(&self, id: usize, path: &[String]) -> bool {
        (1..path.len()).any(|end| {
            let before = self.resolve(id, &path[..end], &mut Seen::new());
            before.into_iter().any(|target| match target {
                Target::Module(id) => {
                    self.modules[id].names.contains_key(&path[end]) || !self.modules[id].globs.is_empty()
                }
                Target::Item(_) => false,
            })
        })
    }
}

/// Whether a path leads to something of its own crate.
fn is_own(path: &[String]) -> bool {
    path.len() > 1 && ["crate", "self", "super"].contains(&path[0].as_str())
}

fn name_of(item: &syn::Item) -> Option<&Ident> {
    match item {
        syn::Item::Const(item) => Some(&item.ident),
        syn::Item::Enum(item) => Some(&item.ident),
        syn::Item::Fn(item) => Some(&item.sig.ident),
        syn::Item::Static(item) => Some(&item.ident),
        syn::Item::Struct(item) => Some(&item.ident),
        syn::Item::Trait(item) => Some(&item.ident),
        syn::Item::Type(item) => Some(&item.ident),
        syn::Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

/// The files that a module may be in: one, unless an attribute names another for some features.
fn files_of(module: &syn::ItemMod, file: &Path, folder: &Path) -> Vec<PathBuf> {
    let beside = file.parent().unwrap_or(folder);
    let mut files = Vec::new();
    let mut is_named = false;
    for attribute in &module.attrs {
        is_named |= attribute.path().is_ident("path");
        let text = match &attribute.meta {
            syn::Meta::NameValue(_) if attribute.path().is_ident("path") => attribute_text(attribute),
            syn::Meta::List(list) if list.path.is_ident("cfg_attr") => list.tokens.to_string(),
            _ => continue,
        };
        let named = text.split_once("path = \"").and_then(|(_, rest)| rest.split('"').next());
        files.extend(named.map(|name| beside.join(name)));
    }
    if !is_named {
        let name = module.ident.to_string();
        let file = folder.join(format!("{name}.rs"));
        files.push(if file.exists() { file } else { folder.join(name).join("mod.rs") });
    }
    files
}

fn attribute_text(attribute: &syn::Attribute) -> String {
    match &attribute.meta {
        syn::Meta::NameValue(syn::MetaNameValue {
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
            ..
        }) => format!("path = \"{}\"", text.value()),
        _ => String::new(),
    }
}

/// The names of the items that these tokens define, whatever else a macro makes of them.
fn defined_in(tokens: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let names = tokens.windows(2).filter_map(|pair| match pair {
        [TokenTree::Ident(word), TokenTree::Ident(name)] if ITEMS.iter().any(|item| word == item) => Some(name),
        _ => None,
    });
    names.map(ToString::to_string).collect()
}

/// Collects the paths that a module's code has.
struct Uses<'m> {
    module: &'m mut Module,
    /// The variables and generic parameters of the function around.
    locals: BTreeSet<String>,
}

impl Uses<'_> {
    fn add(&mut self, path: Vec<String>) {
        if path.len() > 1 || !self.locals.contains(&path[0]) {
            self.module.paths.insert(path);
        }
    }

    fn import(&mut self, tree: &syn::UseTree, before: &[String], is_public: bool) {
        let with = |name: &Ident| {
            let mut path = before.to_vec();
            // `a::{self}` is `a`.
            if name != "self" || before.is_empty() {
                path.push(name.to_string());
            }
            path
        };
        let (path, name) = match tree {
            syn::UseTree::Path(part) => return self.import(&part.tree, &with(&part.ident), is_public),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, before, is_public));
            }
            syn::UseTree::Glob(_) => {
                self.module.globs.push(before.to_vec());
                (before.to_vec(), None)
            }
            syn::UseTree::Name(name) => (with(&name.ident), with(&name.ident).pop()),
            syn::UseTree::Rename(rename) => (with(&rename.ident), Some(rename.rename.to_string())),
        };
        if let Some(name) = name {
            self.module.names.entry(name).or_default().push(Meaning::Import(path.clone()));
        }
        self.module.imports.push(Import { path, is_public });
    }

    /// Notes the paths in the tokens of a macro. The tokens do not say what they will be, so a single name counts if it
    /// is that of a type or is called.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is =
            |index: usize, c: char| matches!(tokens.get(index), Some(TokenTree::Punct(punct)) if punct.as_char() == c);
        let mut next = 0;
        while let Some(token) = tokens.get(next) {
            let start = next;
            next += 1;
            let first = match token {
                TokenTree::Group(group) => {
                    self.tokens(group.stream());
                    continue;
                }
                TokenTree::Ident(first) => first.to_string(),
                _ => continue,
            };
            let mut path = vec![first];
            while let (true, true, Some(TokenTree::Ident(name))) =
                (is(next, ':'), is(next + 1, ':'), tokens.get(next + 2))
            {
                path.push(name.to_string());
                next += 3;
            }
            let behind = |c: char| start > 0 && is(start - 1, c);
            let is_field = behind('.') && !(start > 1 && is(start - 2, '.'));
            let is_variable = behind('$') && path[0] != "crate";
            if is_field || is_variable || behind(':') && start > 1 && is(start - 2, ':') {
                continue;
            }
            let is_macro = is(next, '!');
            let is_call = matches!(tokens.get(next), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
            if is_macro && path.len() == 1 {
                self.module.calls.insert(path[0].clone());
            }
            if path.len() > 1 || is_macro || is_call || path[0].starts_with(char::is_uppercase) {
                self.add(path);
            }
        }
    }
}

impl<'a> Visit<'a> for Uses<'_> {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[], !matches!(item.vis, syn::Visibility::Inherited));
        }
    }

    // A module of its own.
    fn visit_item_mod(&mut self, _: &'a syn::ItemMod) {}

    // `pub(in crate::a)` needs nothing of `a`.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    /// `#[serde(with = "a::b")]`: the paths in quotes.
    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        let syn::Meta::List(list) = &attribute.meta else { return };
        for token in list.tokens.clone() {
            let TokenTree::Literal(literal) = token else { continue };
            let text = literal.to_string();
            let path = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_default();
            if !path.is_empty() && path.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                self.add(path.split("::").map(str::to_owned).collect());
            }
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() {
            self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.module.calls.extend(call.path.get_ident().map(ToString::to_string));
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        let before = std::mem::replace(&mut self.locals, Locals::of(|locals| locals.visit_item_fn(function)));
        visit::visit_item_fn(self, function);
        self.locals = before;
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        let before = std::mem::replace(&mut self.locals, Locals::of(|locals| locals.visit_impl_item_fn(function)));
        visit::visit_impl_item_fn(self, function);
        self.locals = before;
    }

    fn visit_trait_item_fn(&mut self, function: &'a syn::TraitItemFn) {
        let before = std::mem::replace(&mut self.locals, Locals::of(|locals| locals.visit_trait_item_fn(function)));
        visit::visit_trait_item_fn(self, function);
        self.locals = before;
    }
}

/// Collects the variables and generic parameters of a function.
#[derive(Default)]
struct Locals(BTreeSet<String>);

impl Locals {
    fn of(collect: impl FnOnce(&mut Locals)) -> BTreeSet<String> {
        let mut locals = Locals::default();
        collect(&mut locals);
        locals.0
    }
}

impl<'a> Visit<'a> for Locals {
    fn visit_pat_ident(&mut self, pattern: &'a syn::PatIdent) {
        // Written large it is a constant, or a variant.
        let name = pattern.ident.to_string();
        if !name.starts_with(char::is_uppercase) {
            self.0.insert(name);
        }
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_type_param(&mut self, parameter: &'a syn::TypeParam) {
        self.0.insert(parameter.ident.to_string());
    }

    fn visit_const_param(&mut self, parameter: &'a syn::ConstParam) {
        self.0.insert(parameter.ident.to_string());
    }
}
