//! One exposition made of several: the format wants all samples of a metric in one place, below what is said of it once.

use std::collections::HashMap;

const END: &str = "# EOF\n";

#[derive(Default)]
struct Family<'a> {
    comments: Vec<&'a str>,
    samples: Vec<&'a str>,
}

/// The first says what a metric is; the others may have metrics of their own.
pub(super) fn together(mut texts: Vec<String>) -> String {
    if texts.len() == 1 {
        return texts.remove(0);
    }
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for text in &texts {
        // Below which comments samples stand, and whether these are the first of their metric.
        let (mut current, mut is_first) = (None, false);
        for line in text.lines().filter(|line| *line != END.trim_end()) {
            let Some(comment) = line.strip_prefix("# ") else {
                if let Some(family) = current.and_then(|family: usize| families.get_mut(family)) {
                    family.samples.push(line);
                }
                continue;
            };
            let name = comment.split(' ').nth(1).unwrap_or_default();
            if comment.starts_with("HELP ") {
                is_first = !by_name.contains_key(name);
                let family = *by_name.entry(name).or_insert(families.len());
                if is_first {
                    families.push(Family::default());
                }
                current = Some(family);
            }
            if let Some(family) = current.filter(|_| is_first) {
                families[family].comments.push(line);
            }
        }
    }
    let mut whole = String::with_capacity(texts.iter().map(String::len).sum());
    for line in families
        .iter()
        .flat_map(|family| family.comments.iter().chain(&family.samples))
    {
        whole.push_str(line);
        whole.push('\n');
    }
    whole + END
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

    use crate::{Metrics, ObjectKey};

    #[test]
    fn samples_of_a_metric_stand_together_as_long_as_their_cluster_is_there() {
        let metrics = Metrics::new();
        let count = |metrics: &Metrics, name: &str, number: u64| {
            let counter: Counter = Counter::default();
            counter.inc_by(number);
            metrics.register(name, "Nodes made", counter);
        };
        count(&metrics, "nodes", 1);
        let alone = metrics.encode();
        let north = metrics.of_cluster(&ObjectKey::namespaced("fleet", "north"));
        let south = metrics.of_cluster(&ObjectKey::namespaced("fleet", "south"));
        count(&north, "nodes", 2);
        count(&south, "nodes", 3);
        let gauge: Gauge = Gauge::default();
        south.register("pods", "Pods that wait", gauge);
        let text = metrics.encode();
        let nodes = "# HELP nodes Nodes made.\n# TYPE nodes counter\nnodes_total 1\nnodes_total{cluster=\"fleet/north\"} 2\n\
                     nodes_total{cluster=\"fleet/south\"} 3\n";
        assert!(text.contains(nodes), "{text}");
        assert!(
            text.ends_with("# TYPE pods gauge\npods{cluster=\"fleet/south\"} 0\n# EOF\n"),
            "{text}"
        );
        assert_eq!(text.matches("# EOF").count(), 1);
        assert_eq!(
            metrics.descriptions().len(),
            Metrics::new().descriptions().len() + 1,
            "the reference has it once"
        );
        drop((north, south));
        assert_eq!(metrics.encode(), alone);
    }
}
