//! What an op's reverse-mode rule sees.

use crate::ir::{GraphBuilder, OpError, TensorType, TypeError, Value};

/// One node's operands, results and result cotangents, as its `vjp` rule sees them.
pub struct VjpContext<'a> {
    /// Where the rule pushes its nodes.
    pub builder: &'a mut GraphBuilder,
    pub(super) operands: &'a [Value],
    pub(super) results: &'a [Value],
    pub(super) cotangents: &'a [Option<Value>],
    pub(super) needs: &'a [bool],
    pub(super) gradients: &'a mut [Option<Value>],
}

impl VjpContext<'_> {
    /// Number of operands.
    pub fn operand_count(&self) -> usize {
        self.operands.len()
    }

    /// An operand's value in the forward pass.
    pub fn operand(&self, index: usize) -> Value {
        self.operands[index]
    }

    /// The type of an operand, which is that of its cotangent.
    pub fn operand_type(&self, index: usize) -> &TensorType {
        self.builder.ty(self.operands[index])
    }

    /// A result's value in the forward pass.
    pub fn result(&self, index: usize) -> Value {
        self.results[index]
    }

    /// The cotangent of a result; `None` where no gradient flows into it.
    pub fn cotangent(&self, index: usize) -> Option<Value> {
        self.cotangents[index]
    }

    /// Whether anybody asks for the cotangent of an operand.
    pub fn needs(&self, index: usize) -> bool {
        self.needs[index]
    }

    /// States the cotangent of an operand; ignored if nobody asks for it.
    pub fn set(&mut self, index: usize, gradient: Value) {
        if self.needs[index] {
            self.gradients[index] = Some(gradient);
        }
    }

    /// The rule of an op with one result that only the first operand has a gradient of: the operand's cotangent from the
    /// result's, where there is one.
    ///
    /// # Errors
    /// Those of the rule.
    pub fn pull_back(
        &mut self,
        rule: impl FnOnce(&mut GraphBuilder, Value) -> Result<Value, OpError>,
    ) -> Result<(), OpError> {
        let Some(ct) = self.cotangents[0] else { return Ok(()) };
        let gradient = rule(self.builder, ct)?;
        self.set(0, gradient);
        Ok(())
    }

    /// States the cotangent of an operand, which is made only if anybody asks for it.
    ///
    /// # Errors
    /// Those of making it.
    pub fn set_with(
        &mut self,
        index: usize,
        gradient: impl FnOnce(&mut GraphBuilder) -> Result<Value, OpError>,
    ) -> Result<(), OpError> {
        if self.needs[index] {
            self.gradients[index] = Some(gradient(self.builder)?);
        }
        Ok(())
    }

    /// The error of an op without a gradient.
    pub fn not_differentiable(&self, op: &'static str) -> OpError {
        let operands = self.operands.iter().map(|&value| self.builder.ty(value).clone()).collect();
        OpError::new(op, TypeError::NotDifferentiable, operands, self.builder.origin())
    }
}
