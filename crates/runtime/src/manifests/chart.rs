//! The Helm chart: the objects of every package, with the few things a user sets made into values. With the values it
//! comes with it renders to what clusterctl installs, but that Helm is told to keep custom resources when the chart goes.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::{Map, Value, json};

use super::{Bundle, Release, yaml};

const FOLDER: &str = "helm/slipway";

/// Tells Helm to leave an object behind. Deleting a custom resource definition deletes every object of it.
const KEEP: &str = "helm.sh/resource-policy";

/// Every file by its path under `deploy/`.
pub fn files(bundles: &[Bundle], release: &Release) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    if bundles.is_empty() {
        return files;
    }
    let mut add = |name: &str, text: String| files.insert(PathBuf::from(FOLDER).join(name), text);
    let (repository, tag) = release.image.rsplit_once(':').unwrap_or((&release.image, ""));
    add(
        "Chart.yaml",
        yaml::document(&json!({
            "apiVersion": "v2",
            "name": "slipway",
            "description": "Runs fleets of Kubernetes clusters through Cluster API",
            "type": "application",
            "version": release.version.trim_start_matches('v'),
            "appVersion": release.version,
            "kubeVersion": ">=1.33.0-0",
        })),
    );
    let mut packages = Map::new();
    let mut variables = Map::new();
    for bundle in bundles {
        let mut template = Template::default();
        let text = template.package(bundle, release);
        variables.append(&mut template.variables);
        packages.insert(bundle.identity.clone(), json!({"enabled": true}));
        add(&format!("templates/{}.yaml", bundle.identity), text);
    }
    let values = json!({
        "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
        "imagePullSecrets": [],
        "keepResourceDefinitions": true,
        "nodeSelector": {},
        "packages": packages,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "variables": variables,
    });
    add("values.yaml", format!("{VALUES}{}", yaml::document(&values)));
    files
}

const VALUES: &str = "\
# image: the manager's image; every package runs the same.
# imagePullSecrets: names of secrets to pull it with, as a Pod has them.
# keepResourceDefinitions: leave custom resource definitions, and so every object of them, when the chart is uninstalled.
# nodeSelector, resources: of every manager's Pod.
# packages: which packages are installed; each has a namespace and a Deployment of its own.
# variables: what clusterctl reads from its configuration under the same names.
";

/// Turns objects into template text: what a template puts in stands as a mark in the values until they are YAML.
#[derive(Default)]
struct Template {
    actions: Vec<Action>,
    variables: Map<String, Value>,
}

enum Action {
    /// Within the quotes that are there.
    Text(String),
    /// In place of the whole value, quotes included.
    Value(String),
    /// In place of the whole value, as a block below its key.
    Block(String),
}

impl Template {
    fn package(&mut self, bundle: &Bundle, release: &Release) -> String {
        let mut text = format!(
            "{{{{- if (index .Values.packages \"{}\").enabled }}}}\n",
            bundle.identity
        );
        for mut object in bundle.objects(release) {
            self.escape(&mut object);
            let is_definition = object["kind"] == "CustomResourceDefinition";
            if object["kind"] == "Deployment" {
                self.deployment(&mut object);
            }
            let mut rendered = yaml::document(&object);
            if is_definition {
                rendered = keep(&rendered, object["metadata"]["annotations"].is_object());
            }
            text.push_str("---\n");
            text.push_str(&self.fill(&rendered));
        }
        text.push_str("{{- end }}\n");
        text
    }

    fn deployment(&mut self, object: &mut Value) {
        let pod = &mut object["spec"]["template"]["spec"];
        pod["nodeSelector"] = self.mark(Action::Block(".Values.nodeSelector".to_owned()));
        pod["imagePullSecrets"] = self.mark(Action::Block(".Values.imagePullSecrets".to_owned()));
        for container in pod["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = self.mark(Action::Value(
                "printf \"%s:%s\" .Values.image.repository .Values.image.tag | quote".to_owned(),
            ));
            container["imagePullPolicy"] = self.mark(Action::Value(".Values.image.pullPolicy".to_owned()));
            container["resources"] = self.mark(Action::Block(".Values.resources".to_owned()));
        }
    }

    fn mark(&mut self, action: Action) -> Value {
        self.actions.push(action);
        Value::String(mark(self.actions.len() - 1))
    }

    /// Makes clusterctl's variables Helm's, and keeps what only looks like a template from being one.
    fn escape(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => {
                while let Some(start) = text.find("${") {
                    let Some(length) = text[start..].find('}') else {
                        break;
                    };
                    let inner = &text[start + 2..start + length];
                    let (name, default) = inner.split_once(":=").unwrap_or((inner, ""));
                    self.variables.insert(name.to_owned(), json!(default));
                    self.actions
                        .push(Action::Text(format!("index .Values.variables \"{name}\"")));
                    let mark = mark(self.actions.len() - 1);
                    text.replace_range(start..=start + length, &mark);
                }
                while let Some(start) = text.find("{{") {
                    self.actions.push(Action::Text("\"{{\"".to_owned()));
                    let mark = mark(self.actions.len() - 1);
                    text.replace_range(start..start + 2, &mark);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.escape(item)),
            Value::Object(map) => map.values_mut().for_each(|item| self.escape(item)),
            _ => {}
        }
    }

    /// Puts the actions where their marks are. A mark is never a plain scalar, so it stands within quotes.
    fn fill(&self, rendered: &str) -> String {
        let mut text = String::with_capacity(rendered.len());
        for line in rendered.lines() {
            text.push_str(&self.fill_line(line));
            text.push('\n');
        }
        text
    }

    fn fill_line(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for (index, action) in self.actions.iter().enumerate() {
            let mark = mark(index);
            if !line.contains(&mark) {
                continue;
            }
            let quoted = format!("\"{mark}\"");
            line = match action {
                Action::Text(action) => line.replace(&mark, &format!("{{{{ {action} }}}}")),
                Action::Value(action) => line.replace(&quoted, &format!("{{{{ {action} }}}}")),
                Action::Block(action) => {
                    let indentation = line.len() - line.trim_start_matches([' ', '-']).len() + 2;
                    line.replace(
                        &format!(" {quoted}"),
                        &format!(" {{{{- toYaml {action} | nindent {indentation} }}}}"),
                    )
                }
            };
        }
        line
    }
}

/// Stands for an action: its first character is in nothing else we render.
fn mark(index: usize) -> String {
    format!("§{index}§")
}

/// Adds Helm's annotation to a rendered definition, behind a switch.
fn keep(rendered: &str, has_annotations: bool) -> String {
    let annotation = format!("    {KEEP}: keep\n");
    let mut text = String::with_capacity(rendered.len() + 128);
    let mut done = false;
    for line in rendered.lines() {
        text.push_str(line);
        text.push('\n');
        let here = if has_annotations {
            "  annotations:"
        } else {
            "metadata:"
        };
        if line == here && !done {
            done = true;
            text.push_str("{{- if .Values.keepResourceDefinitions }}\n");
            if !has_annotations {
                text.push_str("  annotations:\n");
            }
            text.push_str(&annotation);
            text.push_str("{{- end }}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(value: Value) -> (String, Template) {
        let mut template = Template::default();
        let mut value = value;
        template.escape(&mut value);
        let text = template.fill(&yaml::document(&value));
        (text, template)
    }

    #[test]
    fn variables_of_clusterctl_become_values_of_helm() {
        let (text, template) =
            rendered(json!({"args": ["--a=${ONE:=:8443}", "--b=${TWO:=x},${ONE:=:8443}"]}));
        assert_eq!(
            text,
            "args:\n- \"--a={{ index .Values.variables \"ONE\" }}\"\n\
             - \"--b={{ index .Values.variables \"TWO\" }},{{ index .Values.variables \"ONE\" }}\"\n"
        );
        assert_eq!(
            Value::Object(template.variables),
            json!({"ONE": ":8443", "TWO": "x"})
        );
    }

    #[test]
    fn what_looks_like_a_template_stays_text() {
        let (text, _) = rendered(json!({"description": "write {{ ds.meta_data }} there"}));
        assert_eq!(
            text,
            "description: \"write {{ \"{{\" }} ds.meta_data }} there\"\n"
        );
    }

    #[test]
    fn blocks_stand_below_their_key() {
        let mut template = Template::default();
        let mark = template.mark(Action::Block(".Values.resources".to_owned()));
        let text = template.fill(&yaml::document(&json!({"containers": [{"resources": mark}]})));
        assert_eq!(
            text,
            "containers:\n- resources: {{- toYaml .Values.resources | nindent 4 }}\n"
        );
    }

    #[test]
    fn definitions_are_kept_by_a_switch() {
        for (annotations, expected) in [
            (
                false,
                "metadata:\n{{- if .Values.keepResourceDefinitions }}\n  annotations:\n    helm.sh/resource-policy: keep\n{{- end }}\n  name: a\n",
            ),
            (
                true,
                "metadata:\n  annotations:\n{{- if .Values.keepResourceDefinitions }}\n    helm.sh/resource-policy: keep\n{{- end }}\n    b: c\n",
            ),
        ] {
            let given = if annotations {
                "metadata:\n  annotations:\n    b: c\n"
            } else {
                "metadata:\n  name: a\n"
            };
            assert_eq!(keep(given, annotations), expected);
        }
    }
}
