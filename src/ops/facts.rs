//! Facts: the properties of an op that passes ask for besides its rules.
//!
//! A pass that treats some ops alike asks for a fact here instead of listing the ops. An op states its facts next to
//! its rules, most of them in one line out of the constants of [`Facts`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::Group;
use crate::ir::Graph;
use meshloom_hlo::CollectiveKind;

/// The properties by which passes treat ops alike.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The way in which back ends compute the op.
    pub class: Class,
    /// The operands in which the op is linear.
    pub linear: Linear,
    /// Where its floating-point results are zero.
    pub zeros: Zeros,
    /// Operands such that every element of the result is an element of one of them.
    pub picks: Option<Operands>,
    /// The relation of the op's results to other devices.
    pub devices: Devices<'a>,
    /// Whether it matters where the op stands and how often it runs.
    pub effect: Effect,
    /// Whether running it again costs no more than reading its result back from memory.
    pub is_cheap: bool,
    /// Whether each device can make its part of the result, however it is split, if the operands are scalars.
    pub is_made_anywhere: bool,
    /// Whether the op changes elements of its first operand and leaves the others, so that it can work in that
    /// operand's buffer.
    pub is_in_place: bool,
    /// Whether result `i` depends on operand `i` alone.
    pub is_separate: bool,
}

/// The way in which back ends compute an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Made from nothing.
    Source,
    /// The result is the operand: the op tells the compiler something.
    Identity,
    /// The same elements in the same order.
    Reshape,
    /// Repeats elements.
    Broadcast,
    /// Each element of the result is computed from the elements in its place; scalar operands serve all places.
    Elementwise,
    /// Moves elements without computing anything.
    Movement,
    /// Folds dimensions, and computes its operand on the way.
    Fold,
    /// Anything else: reads its operands from memory and writes its results there.
    Kernel,
}

impl Class {
    /// Whether back ends compute the op within its readers, so that its result need not be in memory.
    pub const fn is_fused(self) -> bool {
        matches!(self, Class::Reshape | Class::Broadcast | Class::Elementwise | Class::Movement)
    }
}

/// Some operands of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// All of them.
    All,
    /// The operands with these indices.
    These(&'static [usize]),
}

impl Operands {
    /// The indices of the operands, of an op that has `count` operands.
    pub fn of(self, count: usize) -> SmallVec<[usize; 4]> {
        match self {
            Operands::All => (0..count).collect(),
            Operands::These(numbers) => SmallVec::from_slice(numbers),
        }
    }
}

/// The operands in which an op is linear. The sum of integers wraps around as their parts do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linear {
    /// The op is not linear.
    No,
    /// The op is linear in all of these together, while the others stay.
    Together(Operands),
    /// As [`Linear::Together`], up to rounding, if operands and results are of floating-point types.
    OfFloats(Operands),
    /// The op is linear in each of these alone, while the others stay.
    Each(Operands),
}

/// The condition under which an op's floating-point results are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// The results are zero where linearity says so: where all operands are zero in which the op is linear together, or
    /// one in which it is linear alone.
    OfLinear,
    /// The results are zero where all of these operands are.
    Of(Operands),
    /// Result `i` is zero where operand `i` is.
    Matching,
}

/// The relation of an op's results to other devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices<'a> {
    /// Each device computes by itself: where all have the same operands, all have the same results.
    Alone,
    /// Results may differ in any way.
    Unknown,
    /// The result is the device's rank in this group.
    Rank(&'a Group),
    /// The devices of a group communicate.
    Exchange(CollectiveKind, &'a Group),
}

/// Whether it matters where an op stands and how often it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Neither the place of the op nor the number of its runs matters.
    None,
    /// It keeps computation apart: it may be dropped, but neither merged nor moved.
    Fence,
    /// It does something besides giving results, so it runs once for each time it is reached: it may not be dropped
    /// either, even if its results are not read.
    Side,
}

impl Facts<'static> {
    /// The facts of an op that states no others.
    pub const KERNEL: Facts<'static> = Facts {
        class: Class::Kernel,
        linear: Linear::No,
        zeros: Zeros::OfLinear,
        picks: None,
        devices: Devices::Alone,
        effect: Effect::None,
        is_cheap: false,
        is_made_anywhere: false,
        is_in_place: false,
        is_separate: false,
    };

    /// A constant.
    pub const SOURCE: Facts<'static> = Facts { class: Class::Source, is_cheap: true, ..Facts::KERNEL };

    /// An elementwise function that takes a few instructions.
    pub const ELEMENTWISE: Facts<'static> = Facts { class: Class::Elementwise, is_cheap: true, ..Facts::KERNEL };

    /// An elementwise function of many instructions.
    pub const COSTLY: Facts<'static> = Facts { is_cheap: false, ..Facts::ELEMENTWISE };

    /// Moves elements of these operands, whatever they are.
    pub const fn moves(operands: Operands) -> Facts<'static> {
        Facts { class: Class::Movement, linear: Linear::Together(operands), picks: Some(operands), ..Facts::KERNEL }
    }

    /// Moves elements of the first operand.
    pub const MOVEMENT: Facts<'static> = Facts::moves(Operands::These(&[0]));

    /// Returns its operand.
    pub const IDENTITY: Facts<'static> = Facts { class: Class::Identity, is_cheap: true, ..Facts::MOVEMENT };

    /// Linear in the first operand.
    pub const LINEAR: Facts<'static> = Facts::KERNEL.linear(Linear::Together(Operands::These(&[0])));

    /// A product of the first two operands.
    pub const PRODUCT: Facts<'static> = Facts::KERNEL.linear(Linear::Each(Operands::These(&[0, 1])));
}

impl<'a> Facts<'a> {
    /// The same, and linear.
    pub const fn linear(self, linear: Linear) -> Facts<'a> {
        Facts { linear, ..self }
    }

    /// The same, with results that are zero where all of these operands are.
    pub const fn zero_of(self, operands: Operands) -> Facts<'a> {
        Facts { zeros: Zeros::Of(operands), ..self }
    }

    /// The facts of an op with regions, which has the effects of its bodies.
    pub fn of_bodies(bodies: &[&Arc<Graph>]) -> Facts<'static> {
        let has_side_effect = bodies.iter().any(|body| body.has_side_effect());
        Facts { effect: if has_side_effect { Effect::Side } else { Effect::None }, ..Facts::KERNEL }
    }

    /// A collective that is linear.
    pub fn exchange(kind: CollectiveKind, group: &'a Group) -> Facts<'a> {
        let (devices, linear) = (Devices::Exchange(kind, group), Linear::Together(Operands::All));
        Facts { devices, linear, zeros: Zeros::Matching, is_separate: true, ..Facts::KERNEL }
    }

    /// Whether the op makes the same from nothing on every device.
    pub fn is_constant(&self) -> bool {
        self.class == Class::Source && self.devices == Devices::Alone
    }

    /// Whether result number `result` is zero if the operands marked are.
    pub fn is_zero(&self, result: usize, zeros: &[bool]) -> bool {
        let all = |operands: Operands| operands.of(zeros.len()).iter().all(|&operand| zeros[operand]);
        match (self.zeros, self.linear) {
            (Zeros::Matching, _) => zeros[result],
            (Zeros::Of(operands), _) => all(operands),
            (Zeros::OfLinear, Linear::No) => false,
            (Zeros::OfLinear, Linear::Together(operands) | Linear::OfFloats(operands)) => all(operands),
            (Zeros::OfLinear, Linear::Each(operands)) => operands.of(zeros.len()).iter().any(|&operand| zeros[operand]),
        }
    }
}
