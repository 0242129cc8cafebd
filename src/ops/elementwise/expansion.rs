//! Elementwise functions that not every XLA has an opcode for, as instructions that every XLA has.
//!
//! They are ops all the same: a graph shows one node, and their gradients are those of the functions and not of the
//! formulas below; some formulas are exact only where they are selected.

use super::{Direction, UnaryKind};
use crate::ir::{DType, TensorType};
use crate::ops::{EmitContext, InstructionId};

/// Elements of one type, all with the op's dimensions.
struct Expansion<'a> {
    context: &'a mut dyn EmitContext,
    ty: TensorType,
}

macro_rules! arithmetic {
    ($($name:ident $opcode:literal),*) => {$(
        fn $name(&mut self, x: InstructionId, y: InstructionId) -> InstructionId {
            self.apply($opcode, &[x, y])
        }
    )*};
}

impl Expansion<'_> {
    fn apply(&mut self, opcode: &str, operands: &[InstructionId]) -> InstructionId {
        self.context.instruction(opcode, &self.ty, operands)
    }

    fn number(&mut self, number: f64) -> InstructionId {
        let scalar = self.context.number(self.ty.dtype, number);
        if self.ty.rank() == 0 { scalar } else { self.apply("broadcast", &[scalar]) }
    }

    fn convert(&mut self, x: InstructionId, dtype: DType) -> InstructionId {
        self.ty = self.ty.with_dtype(dtype);
        self.apply("convert", &[x])
    }

    arithmetic!(add "add", sub "subtract", mul "multiply", div "divide");

    fn sqrt(&mut self, x: InstructionId) -> InstructionId {
        self.apply("sqrt", &[x])
    }

    fn log_1p(&mut self, x: InstructionId) -> InstructionId {
        self.apply("log-plus-one", &[x])
    }

    /// The first value where `x` stands in this relation to `limit`, the second elsewhere.
    fn choose(
        &mut self,
        (x, direction, limit): (InstructionId, Direction, f64),
        [on_true, on_false]: [InstructionId; 2],
    ) -> InstructionId {
        let limit = self.number(limit);
        let holds = self.context.compare(direction.name(), "FLOAT", &self.ty, [x, limit]);
        self.apply("select", &[holds, on_true, on_false])
    }

    fn if_less(&mut self, x: InstructionId, limit: f64, values: [InstructionId; 2]) -> InstructionId {
        self.choose((x, Direction::Lt, limit), values)
    }

    /// The polynomial with these coefficients, the highest first.
    fn polynomial(&mut self, x: InstructionId, coefficients: &[f64]) -> InstructionId {
        let (&highest, rest) = coefficients.split_first().unwrap_or((&0.0, &[]));
        let mut sum = self.number(highest);
        for &coefficient in rest {
            let (product, coefficient) = (self.mul(sum, x), self.number(coefficient));
            sum = self.add(product, coefficient);
        }
        sum
    }

    /// sqrt((1 - x)(1 + x)), which loses nothing near 1.
    fn other_leg(&mut self, x: InstructionId) -> InstructionId {
        let one = self.number(1.0);
        let (below, above) = (self.sub(one, x), self.add(one, x));
        let product = self.mul(below, above);
        self.sqrt(product)
    }

    /// exp(x) / 2 and exp(-x) / 2. Half the exponent twice: the power overflows only where the result does.
    fn half_powers(&mut self, x: InstructionId) -> [InstructionId; 2] {
        let half = self.number(0.5);
        [0.5, -0.5].map(|factor| {
            let factor = self.number(factor);
            let exponent = self.mul(x, factor);
            let root = self.apply("exponential", &[exponent]);
            let rest = self.mul(half, root);
            self.mul(rest, root)
        })
    }

    fn sinh(&mut self, x: InstructionId) -> InstructionId {
        let [rising, falling] = self.half_powers(x);
        let far = self.sub(rising, falling);
        // With e = exp(x) - 1: (e + e / (e + 1)) / 2, in which nothing cancels.
        let (one, half) = (self.number(1.0), self.number(0.5));
        let power = self.apply("exponential-minus-one", &[x]);
        let below = self.add(power, one);
        let ratio = self.div(power, below);
        let sum = self.add(power, ratio);
        let near = self.mul(half, sum);
        let distance = self.apply("abs", &[x]);
        self.if_less(distance, 1.0, [near, far])
    }

    fn cosh(&mut self, x: InstructionId) -> InstructionId {
        let [rising, falling] = self.half_powers(x);
        self.add(rising, falling)
    }

    /// The value log(x) + log(2), to which both inverse functions come where the square of x overflows.
    fn log_twice(&mut self, x: InstructionId) -> InstructionId {
        let (log, offset) = (self.apply("log", &[x]), self.number(std::f64::consts::LN_2));
        self.add(log, offset)
    }

    /// A number whose square is finite, above which 1 does not count beside it.
    fn large(&self) -> f64 {
        if self.ty.dtype == DType::F64 { 1e150 } else { 1e18 }
    }

    /// sign(x) log(1 + a + a^2 / (1 + sqrt(a^2 + 1))) of a = |x|.
    fn asinh(&mut self, x: InstructionId) -> InstructionId {
        let (one, a) = (self.number(1.0), self.apply("abs", &[x]));
        let square = self.mul(a, a);
        let sum = self.add(square, one);
        let root = self.sqrt(sum);
        let below = self.add(root, one);
        let ratio = self.div(square, below);
        let sum = self.add(a, ratio);
        let (near, far, large) = (self.log_1p(sum), self.log_twice(a), self.large());
        let distance = self.if_less(a, large, [near, far]);
        let sign = self.apply("sign", &[x]);
        self.mul(sign, distance)
    }

    /// log(1 + d + sqrt(d) sqrt(d + 2)) of d = x - 1; NaN below 1, as the roots are.
    fn acosh(&mut self, x: InstructionId) -> InstructionId {
        let (one, two) = (self.number(1.0), self.number(2.0));
        let d = self.sub(x, one);
        let above = self.add(d, two);
        let (root, other) = (self.sqrt(d), self.sqrt(above));
        let product = self.mul(root, other);
        let sum = self.add(d, product);
        let (near, far, large) = (self.log_1p(sum), self.log_twice(x), self.large());
        self.if_less(x, large, [near, far])
    }

    /// (log(1 + x) - log(1 - x)) / 2: the logarithms have opposite signs.
    fn atanh(&mut self, x: InstructionId) -> InstructionId {
        let opposite = self.apply("negate", &[x]);
        let (above, below) = (self.log_1p(x), self.log_1p(opposite));
        let (half, difference) = (self.number(0.5), self.sub(above, below));
        self.mul(half, difference)
    }

    /// exp(-z^2) t Q(2 t - 1) of z = |x|, where t = 2 / (2 + z) and Q is a polynomial; its complement to 2 below 0.
    fn erfc(&mut self, x: InstructionId) -> InstructionId {
        // Beyond this it is 0 in every type.
        let (distance, limit) = (self.apply("abs", &[x]), self.number(30.0));
        let z = self.apply("minimum", &[distance, limit]);
        // With z = c + d, where c has so few bits that its square is exact: exp(-c^2) exp(-d (z + c)). The square of z,
        // rounded, would be some units of the exponent off.
        let (steps, step) = (self.number(16.0), self.number(1.0 / 16.0));
        let scaled = self.mul(z, steps);
        let whole = self.apply("floor", &[scaled]);
        let c = self.mul(whole, step);
        let (d, sum) = (self.sub(z, c), self.add(z, c));
        let (coarse, fine) = (self.mul(c, c), self.mul(d, sum));
        let [coarse, fine] = [coarse, fine].map(|exponent| {
            let exponent = self.apply("negate", &[exponent]);
            self.apply("exponential", &[exponent])
        });
        let two = self.number(2.0);
        let below = self.add(two, z);
        let t = self.div(two, below);
        let above = self.sub(two, z);
        let argument = self.div(above, below);
        let coefficients = if self.ty.dtype == DType::F64 { ERFC_F64 } else { ERFC_F32 };
        let value = self.polynomial(argument, coefficients);
        let value = self.mul(value, t);
        let value = self.mul(value, fine);
        let tail = self.mul(value, coarse);
        let complement = self.sub(two, tail);
        self.if_less(x, 0.0, [complement, tail])
    }

    fn erf_inv(&mut self, x: InstructionId) -> InstructionId {
        let square = self.mul(x, x);
        let opposite = self.apply("negate", &[square]);
        let log = self.log_1p(opposite);
        let w = self.apply("negate", &[log]);
        let root = self.sqrt(w);
        let pieces = if self.ty.dtype == DType::F64 { ERF_INV_F64 } else { ERF_INV_F32 };
        let mut factor = None;
        for piece in pieces.iter().rev() {
            let shift = self.number(piece.shift);
            let argument = self.sub(if piece.of_root { root } else { w }, shift);
            let value = self.polynomial(argument, piece.coefficients);
            factor = Some(match factor {
                Some(above) => self.if_less(w, piece.limit, [value, above]),
                None => value,
            });
        }
        let product = factor.map_or(x, |factor| self.mul(factor, x));
        // At -1 and 1 the polynomials meet the infinite w. Beyond them, w is NaN, and so are all values made of it.
        let (infinity, distance) = (self.number(f64::INFINITY), self.apply("abs", &[x]));
        let infinite = self.mul(x, infinity);
        self.choose((distance, Direction::Eq, 1.0), [infinite, product])
    }
}

/// The inverse of erf on the host, by the approximation that is emitted for `f32`. `x` is between -1 and 1.
pub(crate) fn erf_inv_f32(x: f64) -> f64 {
    let w = -(-x * x).ln_1p();
    let factor = ERF_INV_F32.iter().find(|piece| w < piece.limit).map_or(f64::INFINITY, |piece| {
        let argument = if piece.of_root { w.sqrt() } else { w } - piece.shift;
        piece.coefficients.iter().fold(0.0, |sum, coefficient| sum * argument + coefficient)
    });
    factor * x
}

/// One range of erf's inverse, as a polynomial in a shifted w = -log(1 - x^2) or its root.
struct ErfRange {
    /// The range ends where w reaches this.
    limit: f64,
    of_root: bool,
    shift: f64,
    coefficients: &'static [f64],
}

/// Q of [`Expansion::erfc`]: the polynomial that meets erfc(z) exp(z^2) / t in the Chebyshev nodes of t, whose relative
/// error is below 2e-9. The form is that of J. Schonfelder, "Chebyshev Expansions for the Error and Related Functions",
/// Mathematics of Computation 32, 1978.
#[rustfmt::skip]
const ERFC_F32: &[f64] = &[
    -8.802160349e-6, -1.264313123e-6, 6.85666229e-5, -3.312593016e-5, -0.000329087255, 0.0004271956885,
    0.001544558411, -0.003241932341, -0.01075523548, 0.01822139823, 0.1397360428, 0.3435803323, 0.5107913526,
];

/// The same, of a degree whose relative error is below 2e-17.
#[rustfmt::skip]
#[allow(clippy::excessive_precision)]
const ERFC_F64: &[f64] = &[
    1.2565872268596197063e-9, -1.0739706490607776521e-9, -1.007781369698743218e-8, 1.3309828411705419187e-8,
    2.9995796909149850285e-8, -6.9915991258111031106e-8, -3.2879636227603557254e-9, 1.7908279015125605811e-7,
    -2.8384033369582192076e-7, -1.4173148256804558805e-8, 9.9968105979091213309e-7, -1.8147502308396874471e-6,
    -5.6220173892943637322e-7, 8.057744187348090308e-6, -0.000010848266170054718182, -0.000017073740273626261229,
    0.000072235398100233213633, -0.000017185840159673632619, -0.00033153675453694101318, 0.00041864804431780766283,
    0.0015453060296562169322, -0.003239592534655014057, -0.010755330944743212077, 0.018221115753461416755,
    0.13973604627802736305, 0.34358034220690511375, 0.51079135262101148773,
];

/// M. Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2010: the single precision version, whose
/// relative error is below 4e-7.
#[rustfmt::skip]
const ERF_INV_F32: &[ErfRange] = &[
    ErfRange {
        limit: 5.0,
        of_root: false,
        shift: 2.5,
        coefficients: &[
            2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
            -0.00417768164, 0.246640727, 1.50140941,
        ],
    },
    ErfRange {
        limit: f64::INFINITY,
        of_root: true,
        shift: 3.0,
        coefficients: &[
            -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
            0.00943887047, 1.00167406, 2.83297682,
        ],
    },
];

/// The double precision version of the same paper, whose relative error is below 2e-15.
#[rustfmt::skip]
#[allow(clippy::excessive_precision)]
const ERF_INV_F64: &[ErfRange] = &[
    ErfRange {
        limit: 6.25,
        of_root: false,
        shift: 3.125,
        coefficients: &[
            -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
            -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
            -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
            1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
            -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352, -0.00074070253416626697512,
            -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356,
        ],
    },
    ErfRange {
        limit: 16.0,
        of_root: true,
        shift: 3.25,
        coefficients: &[
            2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
            1.5027403968909827627e-06, -4.013867526981545969e-06, 2.9234449089955446044e-06, 1.2475304481671778723e-05,
            -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
            0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
            0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
        ],
    },
    ErfRange {
        limit: f64::INFINITY,
        of_root: true,
        shift: 5.0,
        coefficients: &[
            -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09, -3.7894654401267369937e-09,
            7.6157012080783393804e-09, -1.4960026627149240478e-08, 2.9147953450901080826e-08, -6.7711997758452339498e-08,
            2.2900482228026654717e-07, -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
            7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026, 1.0103004648645343977,
            4.8499064014085844221,
        ],
    },
];

/// Emits a function without an opcode; false for one that has one. Narrow types are computed in `f32`.
pub(super) fn emit(kind: UnaryKind, context: &mut dyn EmitContext) -> bool {
    use UnaryKind as U;
    let expanded = [U::Acos, U::Acosh, U::Asin, U::Asinh, U::Atan, U::Atanh, U::Cosh, U::Erfc, U::ErfInv, U::Sinh];
    if !expanded.contains(&kind) {
        return false;
    }
    let (mut x, ty) = (context.operand_id(0), context.operand_type(0).clone());
    let dtype = ty.dtype;
    let mut expansion = Expansion { context, ty };
    let is_narrow = dtype.byte_count() < 4;
    if is_narrow {
        x = expansion.convert(x, DType::F32);
    }
    let mut y = match kind {
        U::Acos => {
            let leg = expansion.other_leg(x);
            expansion.apply("atan2", &[leg, x])
        }
        U::Asin => {
            let leg = expansion.other_leg(x);
            expansion.apply("atan2", &[x, leg])
        }
        U::Atan => {
            let one = expansion.number(1.0);
            expansion.apply("atan2", &[x, one])
        }
        U::Acosh => expansion.acosh(x),
        U::Asinh => expansion.asinh(x),
        U::Atanh => expansion.atanh(x),
        U::Cosh => expansion.cosh(x),
        U::Erfc => expansion.erfc(x),
        U::Sinh => expansion.sinh(x),
        _ => expansion.erf_inv(x),
    };
    if is_narrow {
        y = expansion.convert(y, dtype);
    }
    context.set_result(0, y);
    true
}
