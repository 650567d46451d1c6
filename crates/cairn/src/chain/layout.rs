//! Says of a block that can't be cut into rows: it is kept whole, and nothing is lost, but tables of rows don't have it.

use cairn_core::{BlockLayout, RawBlock, Slices};

/// A layout whose silence is heard.
#[derive(Debug)]
pub struct Heard<L>(pub L);

impl<L: BlockLayout> BlockLayout for Heard<L> {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let slices = self.0.slices(block);
        if slices.is_none() {
            tracing::warn!(block = %block.block_ref(), "this block can't be cut into rows and is kept whole; please report it");
            metrics::counter!("cairn_raw_uncut_blocks_total").increment(1);
        }
        slices
    }

    fn has_scripts(&self) -> bool {
        self.0.has_scripts()
    }
}

#[cfg(test)]
mod tests {
    use cairn_flow::{FlowLayout, Network};
    use cairn_flow_node::Draft;

    use super::*;

    #[test]
    fn a_block_that_is_kept_whole_is_counted() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let whole = cairn_flow::assemble(&Draft::new(20, &[1], 1).parts()).expect("is whole");
        let broken = RawBlock { body: whole.body.slice(1..), ..whole.clone() };
        metrics::with_local_recorder(&recorder, || {
            let layout = Heard(FlowLayout::new(Network::Emulator));
            assert!(layout.slices(&whole).is_some());
            assert!(!handle.render().contains("cairn_raw_uncut_blocks_total"));
            assert!(layout.slices(&broken).is_none());
        });
        assert!(handle.render().contains("cairn_raw_uncut_blocks_total 1"), "{}", handle.render());
    }
}
