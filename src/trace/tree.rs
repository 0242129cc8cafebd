//! Trees of tensors: structs, tuples, vectors and options whose leaves all have one type.

use std::fmt;

use smallvec::SmallVec;

use super::context::fail_internal;
use super::{Param, Tensor, TensorSpec};
use crate::ir::Literal;
use meshloom_hlo::message::counted;

/// The way from the root of a tree to a leaf. Its text, by `to_string`, is such as `layers.3.attention.wq`.
///
/// The parts are put together only when the text is asked for: most walks over a tree do not need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(SmallVec<[PathPart; 8]>);

/// One step of a [`Path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathPart {
    /// A field of a struct.
    Field(&'static str),
    /// An element of a vector, array or tuple.
    Element(usize),
    /// Several elements in one, such as every second from 1 on: `1::2`.
    Every {
        /// The first of them.
        first: usize,
        /// The distance from one to the next.
        step: usize,
    },
}

impl From<&'static str> for PathPart {
    fn from(name: &'static str) -> PathPart {
        PathPart::Field(name)
    }
}

impl From<usize> for PathPart {
    fn from(index: usize) -> PathPart {
        PathPart::Element(index)
    }
}

impl Path {
    /// Runs `f` with one more part on the path.
    pub fn descend<R>(&mut self, part: impl Into<PathPart>, f: impl FnOnce(&mut Path) -> R) -> R {
        self.0.push(part.into());
        let result = f(self);
        self.0.pop();
        result
    }

    /// Runs `f` with the parts of another path on this one.
    fn follow<R>(&mut self, other: &Path, f: impl FnOnce(&mut Path) -> R) -> R {
        let length = self.0.len();
        self.0.extend_from_slice(&other.0);
        let result = f(self);
        self.0.truncate(length);
        result
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            match part {
                PathPart::Field(name) => f.write_str(name)?,
                PathPart::Element(index) => write!(f, "{index}")?,
                PathPart::Every { first, step } => write!(f, "{first}::{step}")?,
            }
        }
        Ok(())
    }
}

/// A value made of leaves of one type, always visited in the same order.
///
/// Structs get it from [`tree!`](crate::tree); tuples, `Vec`, arrays, `Box` and `Option` of trees are trees.
pub trait Tree: Sized {
    /// The leaves' type.
    type Leaf;

    /// Visits every leaf with its path.
    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &Self::Leaf));

    /// The same structure with other leaves, drawn in visiting order.
    fn rebuild(&self, next: &mut dyn FnMut() -> Self::Leaf) -> Self;

    /// All leaves, cloned, in visiting order.
    fn leaves(&self) -> Vec<Self::Leaf>
    where
        Self::Leaf: Clone,
    {
        let mut leaves = Vec::new();
        self.visit(&mut Path::default(), &mut |_, leaf| leaves.push(leaf.clone()));
        leaves
    }

    /// The paths of all leaves, in visiting order.
    fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.visit(&mut Path::default(), &mut |path, _| paths.push(path.to_string()));
        paths
    }
}

/// A tree of tensors.
pub trait TensorTree: Tree<Leaf = Tensor> {}

impl<T: Tree<Leaf = Tensor>> TensorTree for T {}

/// The same structure with other tensors, in order. Missing ones are poisoned, after an error has been noted.
pub(crate) fn refill<T: TensorTree>(tree: &T, tensors: &mut dyn Iterator<Item = Tensor>) -> T {
    tree.rebuild(&mut || next_leaf(tensors))
}

/// The tensor for the next leaf of a tree.
pub(super) fn next_leaf(tensors: &mut dyn Iterator<Item = Tensor>) -> Tensor {
    tensors.next().unwrap_or_else(|| fail_internal("a tree of tensors", "a tensor for each of its leaves"))
}

/// A tree whose leaves can be replaced by leaves of type `U`.
pub trait MapTree<U>: Tree {
    /// The same structure over `U`.
    type Mapped: Tree<Leaf = U>;

    /// Replaces every leaf.
    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &Self::Leaf) -> U) -> Self::Mapped;

    /// Replaces every leaf.
    fn map(&self, mut f: impl FnMut(&Path, &Self::Leaf) -> U) -> Self::Mapped {
        self.map_with(&mut Path::default(), &mut f)
    }

    /// The same structure over these leaves, in visiting order.
    ///
    /// # Errors
    /// The tree has another number of leaves.
    fn fill(&self, leaves: Vec<U>) -> Result<Self::Mapped, LeafCountError>
    where
        U: Clone,
    {
        let mut count = 0;
        self.visit(&mut Path::default(), &mut |_, _| count += 1);
        if count != leaves.len() {
            return Err(LeafCountError { expected: count, found: leaves.len() });
        }
        let mut index = 0;
        Ok(self.map(|_, _| {
            index += 1;
            leaves[index - 1].clone()
        }))
    }
}

/// The inputs of a function, as [`Function::trace`](super::Function::trace) takes them: [`TensorSpec`]s and [`Param`]s,
/// in the structs of [`tree!`](crate::tree), tuples, `Vec`, arrays, `Box` and `Option`.
pub trait Inputs {
    /// The same structure over types.
    type Specs: Tree<Leaf = TensorSpec> + MapTree<Tensor>;

    /// The type of every input.
    fn specs(&self) -> Self::Specs;
}

/// Any tree of types as [`Inputs`]: for code that is generic over trees.
#[derive(Clone, Debug)]
pub struct Specs<I>(pub I);

impl<I: Tree<Leaf = TensorSpec> + MapTree<Tensor> + Clone> Inputs for Specs<I> {
    type Specs = I;

    fn specs(&self) -> I {
        self.0.clone()
    }
}

macro_rules! inputs {
    ($([$($generics:tt)*] $type:ty => $specs:ty, |$this:ident| $expr:expr;)*) => {$(
        impl<$($generics)*> Inputs for $type {
            type Specs = $specs;

            fn specs(&self) -> $specs {
                let $this = self;
                $expr
            }
        }
    )*};
}

inputs! {
    [] TensorSpec => TensorSpec, |this| this.clone();
    [] Param => TensorSpec, |this| this.spec.clone();
    [A: Inputs] &A => A::Specs, |this| A::specs(this);
    [A: Inputs] Vec<A> => Vec<A::Specs>, |this| this.iter().map(A::specs).collect();
    [A: Inputs, const N: usize] [A; N] => [A::Specs; N], |this| this.each_ref().map(A::specs);
    [A: Inputs] Box<A> => Box<A::Specs>, |this| Box::new(A::specs(this));
    [A: Inputs] Option<A> => Option<A::Specs>, |this| this.as_ref().map(A::specs);
}

/// Values that do not fill a tree.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a tree of {} cannot be filled with {}", counted(*.expected, "leaf"), counted(*.found, "value"))]
pub struct LeafCountError {
    /// Leaves of the tree.
    pub expected: usize,
    /// Values given.
    pub found: usize,
}

meshloom_hlo::debug_is_message!(LeafCountError);

/// Declares a type to be a leaf: a tree of itself.
#[macro_export]
macro_rules! tree_leaf {
    ($($leaf:ty),* $(,)?) => {$(
        impl $crate::trace::Tree for $leaf {
            type Leaf = $leaf;

            fn visit(&self, path: &mut $crate::trace::Path, f: &mut dyn FnMut(&$crate::trace::Path, &$leaf)) {
                f(path, self);
            }

            fn rebuild(&self, next: &mut dyn FnMut() -> $leaf) -> $leaf {
                next()
            }
        }

        impl<U: $crate::trace::Tree<Leaf = U>> $crate::trace::MapTree<U> for $leaf {
            type Mapped = U;

            fn map_with(
                &self,
                path: &mut $crate::trace::Path,
                f: &mut dyn FnMut(&$crate::trace::Path, &$leaf) -> U,
            ) -> U {
                f(path, self)
            }
        }
    )*};
}

tree_leaf!(Tensor, TensorSpec, Param, Literal, String);

/// Declares structs, or one enum, that are trees over their type parameters, which are trees with leaves of one type.
///
/// ```
/// meshloom::tree! {
///     /// A dense layer.
///     pub struct Dense<T> {
///         /// [inputs, outputs].
///         pub weight: T,
///         /// [outputs].
///         pub bias: Option<T>,
///     }
/// }
/// use meshloom::trace::Tree;
/// let names = Dense { weight: "w".to_owned(), bias: Some("b".to_owned()) };
/// assert_eq!(names.paths(), ["weight", "bias"]);
/// ```
///
/// An enum is a tree that is one of several. Its paths are those of the variant that it is.
#[macro_export]
macro_rules! tree {
    ($($(#[$doc:meta])* $visibility:vis struct $name:ident<$first:ident $(, $rest:ident $(= $default:ty)?)*> {
        $($(#[$field_doc:meta])* $field_visibility:vis $field:ident: $ty:ty),* $(,)?
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        $visibility struct $name<$first $(, $rest $(= $default)?)*> {
            $($(#[$field_doc])* $field_visibility $field: $ty,)*
        }

        $crate::tree! {
            @impl $name<$first $(, $rest)*>, self, path, f, next,
            { $(path.descend(stringify!($field), |path| $crate::trace::Tree::visit(&self.$field, path, f));)* }
            { $name { $($field: $crate::trace::Tree::rebuild(&self.$field, next),)* } }
            { $name { $($field: $crate::trace::Inputs::specs(&self.$field),)* } }
            {
                $name {
                    $($field: path.descend(stringify!($field), |path| {
                        $crate::trace::MapTree::<Mapped>::map_with(&self.$field, path, f)
                    }),)*
                }
            }
        }
    )*};

    ($(#[$doc:meta])* $visibility:vis enum $name:ident<$first:ident $(, $rest:ident $(= $default:ty)?)*> {
        $($(#[$variant_doc:meta])* $variant:ident($part:ty)),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        $visibility enum $name<$first $(, $rest $(= $default)?)*> {
            $($(#[$variant_doc])* $variant($part),)*
        }

        $crate::tree! {
            @impl $name<$first $(, $rest)*>, self, path, f, next,
            { match self { $($name::$variant(part) => $crate::trace::Tree::visit(part, path, f),)* } }
            { match self { $($name::$variant(part) => $name::$variant($crate::trace::Tree::rebuild(part, next)),)* } }
            { match self { $($name::$variant(part) => $name::$variant($crate::trace::Inputs::specs(part)),)* } }
            {
                match self {
                    $($name::$variant(part) => {
                        $name::$variant($crate::trace::MapTree::<Mapped>::map_with(part, path, f))
                    })*
                }
            }
        }
    };

    (
        @impl $name:ident<$first:ident $(, $rest:ident)*>, $self:ident, $path:ident, $f:ident, $next:ident,
        $visit:block $rebuild:block $specs:block $map:block
    ) => {
        impl<$first: $crate::trace::Inputs $(, $rest: $crate::trace::Inputs)*> $crate::trace::Inputs
            for $name<$first $(, $rest)*>
        {
            type Specs = $name<$first::Specs $(, $rest::Specs)*>;

            fn specs(&$self) -> Self::Specs $specs
        }

        impl<$first: $crate::trace::Tree $(, $rest: $crate::trace::Tree<Leaf = $first::Leaf>)*> $crate::trace::Tree
            for $name<$first $(, $rest)*>
        {
            type Leaf = $first::Leaf;

            fn visit(
                &$self,
                $path: &mut $crate::trace::Path,
                $f: &mut dyn FnMut(&$crate::trace::Path, &$first::Leaf),
            ) $visit

            fn rebuild(&$self, $next: &mut dyn FnMut() -> $first::Leaf) -> Self $rebuild
        }

        impl<Mapped, $first, $($rest),*> $crate::trace::MapTree<Mapped> for $name<$first $(, $rest)*>
        where
            $first: $crate::trace::MapTree<Mapped>,
            $($rest: $crate::trace::Tree<Leaf = $first::Leaf> + $crate::trace::MapTree<Mapped>,)*
        {
            type Mapped = $name<
                <$first as $crate::trace::MapTree<Mapped>>::Mapped
                $(, <$rest as $crate::trace::MapTree<Mapped>>::Mapped)*
            >;

            fn map_with(
                &$self,
                $path: &mut $crate::trace::Path,
                $f: &mut dyn FnMut(&$crate::trace::Path, &$first::Leaf) -> Mapped,
            ) -> Self::Mapped $map
        }
    };
}

/// Some leaves of a tree, with their paths in it: an optimizer keeps state of some parameters alone in this form.
#[derive(Clone, Debug)]
pub struct Subtree<T>(Vec<(Path, T)>);

impl<T> Default for Subtree<T> {
    fn default() -> Subtree<T> {
        Subtree(Vec::new())
    }
}

impl<T: Clone> Subtree<T> {
    /// The leaves of a tree, in visiting order, for which `keep` is true.
    pub fn of(tree: &impl Tree<Leaf = T>, keep: &[bool]) -> Subtree<T> {
        let (mut kept, mut keep) = (Vec::new(), keep.iter());
        tree.visit(&mut Path::default(), &mut |path, leaf| {
            if keep.next() == Some(&true) {
                kept.push((path.clone(), leaf.clone()));
            }
        });
        Subtree(kept)
    }

    /// The leaves of another tree with the paths of these. A path that it lacks is left out.
    pub fn taken_from<U: Clone>(&self, tree: &impl Tree<Leaf = U>) -> Subtree<U> {
        let (mut taken, mut own) = (Vec::new(), self.0.iter().map(|(path, _)| path).peekable());
        tree.visit(&mut Path::default(), &mut |path, leaf| {
            if own.next_if_eq(&path).is_some() {
                taken.push((path.clone(), leaf.clone()));
            }
        });
        Subtree(taken)
    }
}

impl Subtree<Tensor> {
    /// A tree with these tensors at their paths.
    #[must_use]
    pub fn placed_in<P: TensorTree>(&self, tree: &P) -> P {
        let (mut leaves, mut own) = (Vec::new(), self.0.iter().peekable());
        tree.visit(&mut Path::default(), &mut |path, leaf| {
            leaves.push(own.next_if(|(at, _)| at == path).map_or(*leaf, |(_, tensor)| *tensor));
        });
        refill(tree, &mut leaves.into_iter())
    }
}

impl<A: Inputs> Inputs for Subtree<A> {
    type Specs = Subtree<A::Specs>;

    fn specs(&self) -> Subtree<A::Specs> {
        Subtree(self.0.iter().map(|(path, leaf)| (path.clone(), leaf.specs())).collect())
    }
}

impl<A: Tree> Tree for Subtree<A> {
    type Leaf = A::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf)) {
        for (own, leaf) in &self.0 {
            path.follow(own, |path| leaf.visit(path, f));
        }
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> A::Leaf) -> Self {
        Subtree(self.0.iter().map(|(path, leaf)| (path.clone(), leaf.rebuild(next))).collect())
    }
}

impl<U, A: MapTree<U>> MapTree<U> for Subtree<A> {
    type Mapped = Subtree<A::Mapped>;

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf) -> U) -> Self::Mapped {
        let each = |(own, leaf): &(Path, A)| (own.clone(), path.follow(own, |path| leaf.map_with(path, f)));
        Subtree(self.0.iter().map(each).collect())
    }
}

/// No leaves at all: the stacked part of a scan without stacked inputs or outputs.
impl Tree for () {
    type Leaf = Tensor;

    fn visit(&self, _: &mut Path, _: &mut dyn FnMut(&Path, &Tensor)) {}

    fn rebuild(&self, _: &mut dyn FnMut() -> Tensor) {}
}

impl<A: Tree> Tree for Vec<A> {
    type Leaf = A::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf)) {
        for (index, element) in self.iter().enumerate() {
            path.descend(index, |path| element.visit(path, f));
        }
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> A::Leaf) -> Self {
        self.iter().map(|element| element.rebuild(next)).collect()
    }
}

impl<U, A: MapTree<U>> MapTree<U> for Vec<A> {
    type Mapped = Vec<A::Mapped>;

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf) -> U) -> Self::Mapped {
        let each = |(index, element): (usize, &A)| path.descend(index, |path| element.map_with(path, f));
        self.iter().enumerate().map(each).collect()
    }
}

impl<A: Tree, const N: usize> Tree for [A; N] {
    type Leaf = A::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf)) {
        for (index, element) in self.iter().enumerate() {
            path.descend(index, |path| element.visit(path, f));
        }
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> A::Leaf) -> Self {
        self.each_ref().map(|element| element.rebuild(next))
    }
}

impl<U, A: MapTree<U>, const N: usize> MapTree<U> for [A; N] {
    type Mapped = [A::Mapped; N];

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf) -> U) -> Self::Mapped {
        let mut index = 0;
        self.each_ref().map(|element| {
            index += 1;
            path.descend(index - 1, |path| element.map_with(path, f))
        })
    }
}

impl<A: Tree> Tree for Box<A> {
    type Leaf = A::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf)) {
        A::visit(self, path, f);
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> A::Leaf) -> Self {
        Box::new(A::rebuild(self, next))
    }
}

impl<U, A: MapTree<U>> MapTree<U> for Box<A> {
    type Mapped = Box<A::Mapped>;

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf) -> U) -> Self::Mapped {
        Box::new(A::map_with(self, path, f))
    }
}

impl<A: Tree> Tree for Option<A> {
    type Leaf = A::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf)) {
        if let Some(element) = self {
            element.visit(path, f);
        }
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> A::Leaf) -> Self {
        self.as_ref().map(|element| element.rebuild(next))
    }
}

impl<U, A: MapTree<U>> MapTree<U> for Option<A> {
    type Mapped = Option<A::Mapped>;

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &A::Leaf) -> U) -> Self::Mapped {
        self.as_ref().map(|element| element.map_with(path, f))
    }
}

macro_rules! tuple_trees {
    ($(($first:ident $($rest:ident)*) ($($index:tt)*);)*) => {$(
        impl<$first: Tree, $($rest: Tree<Leaf = $first::Leaf>),*> Tree for ($first, $($rest,)*) {
            type Leaf = $first::Leaf;

            fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &$first::Leaf)) {
                $(path.descend($index, |path| self.$index.visit(path, f));)*
            }

            fn rebuild(&self, next: &mut dyn FnMut() -> $first::Leaf) -> Self {
                ($(self.$index.rebuild(next),)*)
            }
        }

        impl<$first: Inputs, $($rest: Inputs),*> Inputs for ($first, $($rest,)*) {
            type Specs = ($first::Specs, $($rest::Specs,)*);

            fn specs(&self) -> Self::Specs {
                ($(self.$index.specs(),)*)
            }
        }

        impl<U, $first: MapTree<U>, $($rest: MapTree<U> + Tree<Leaf = $first::Leaf>),*> MapTree<U> for ($first, $($rest,)*) {
            type Mapped = ($first::Mapped, $($rest::Mapped,)*);

            fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &$first::Leaf) -> U) -> Self::Mapped {
                ($(path.descend($index, |path| self.$index.map_with(path, f)),)*)
            }
        }
    )*};
}

tuple_trees! {
    (A) (0);
    (A B) (0 1);
    (A B C) (0 1 2);
    (A B C D) (0 1 2 3);
    (A B C D E) (0 1 2 3 4);
    (A B C D E F) (0 1 2 3 4 5);
}
