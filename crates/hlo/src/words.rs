//! Enums whose values are words.

/// Defines enums whose values are each written as a word: all values (`ALL`), the word of each (`name`), the
/// value of a word (`named`), and [`Display`](std::fmt::Display).
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($($(#[$about:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $value,)* }

        impl $name {
            /// All of them, in order.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$value),*];

            /// The one of this word.
            pub fn named(word: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|value| value.name() == word)
            }

            /// Its word.
            pub const fn name(self) -> &'static str {
                match self { $($name::$value => $word,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    )*};
}
