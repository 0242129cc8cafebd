//! `kernels.context_order`: which tokens of a row each device has.

use super::RunConfig;
use super::error::invalid;
use super::placement::Placement;
use super::validate::Checked;
use meshloom::trace::TensorSpec;
use meshloom_nn::{Batch, TokenOrder};

const KEY: &str = "kernels.context_order";

impl RunConfig {
    /// Returns the number of devices that the rules spread the tokens of a row over in attention.
    pub(crate) fn context_parts(&self, placement: &Placement) -> usize {
        let Placement { mesh, rules } = placement;
        // Sizes that every number of parts divides: whether those of the config do is checked elsewhere.
        let dims = [mesh.device_count(); 2];
        let names = Batch::<TensorSpec>::AXES.map(Some);
        let resolved = rules.compute.resolve(mesh, "batch", &names, &dims, &mut Vec::new());
        resolved.map_or(1, |spec| spec.part_count(mesh, 1))
    }

    /// The order in which the tokens of a row go to the devices.
    pub(crate) fn token_order_on(&self, placement: &Placement) -> TokenOrder {
        TokenOrder::new(self.kernels.context_order, self.context_parts(placement))
    }

    /// Checks that rows can be dealt out in the order, and that nothing asks for the index of a token.
    pub(super) fn validate_context_order(&self, placement: &Placement) -> Checked {
        let order = self.token_order_on(placement);
        if order.is_natural() {
            return Ok(());
        }
        let (name, seq, dropout) = (self.kernels.context_order.name(), self.model.seq, self.model.dropout);
        if order.check(seq).is_err() {
            let reason = format!(
                "model.seq, which is {seq}, must be a multiple of {} to be dealt out to {} devices of the mesh \"{}\"",
                order.multiple(),
                self.context_parts(placement),
                placement.mesh
            );
            return Err(invalid(KEY, name, &reason).because(["model.seq"]));
        }
        if dropout > 0.0 {
            let reason = format!(
                "model.dropout is {dropout}, and what drops goes by the index of a token, which must be its place; use \
                 \"natural\", or model.dropout = 0"
            );
            return Err(invalid(KEY, name, &reason).because(["model.dropout"]));
        }
        if self.has_experts() && self.model.expert_capacity > 0.0 {
            let reason = "the tokens that an expert has no slot for are those of the highest index in a row, which must be \
                          their place; use \"natural\", or leave out model.expert_capacity";
            return Err(invalid(KEY, name, reason).because(["model.expert_capacity"]));
        }
        Ok(())
    }

    /// Checks that another model, which may be in any order of tokens, is in that of the config.
    pub(crate) fn check_order_of(&self, of_model: TokenOrder, placement: &Placement) -> Checked {
        if self.token_order_on(placement) == of_model {
            return Ok(());
        }
        let reason = "the model of this run has its tokens in another order (Model::token_order)";
        Err(invalid(KEY, self.kernels.context_order.name(), reason))
    }

    /// Returns the reason why every device has whole rows, if it does.
    pub(super) fn rows_are_whole(&self) -> Option<String> {
        let is_unsplit = self.placement().is_ok_and(|placement| self.context_parts(&placement) == 1);
        is_unsplit.then(|| format!("no rule splits activation_length over the mesh {:?}", self.mesh.axes))
    }
}
