//! The Helm chart: the objects of every package, with the few things a user sets made into values. With the values it
//! comes with it renders to what clusterctl installs, but that Helm is told to keep custom resources when the chart goes.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::{Map, Value, json};

use super::{Bundle, PROVIDER_LABEL, Release, deployment, page, yaml};

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
        packages.insert(
            bundle.identity.clone(),
            json!({
                "enabled": !bundle.on_request,
                "extraArgs": [],
                "extraEnv": [],
                "extraVolumeMounts": [],
                "extraVolumes": [],
                "podAnnotations": {},
                "podLabels": {},
                "replicas": deployment::replicas(bundle),
                "serviceAccount": {"annotations": {}},
            }),
        );
        add(&format!("templates/{}.yaml", bundle.identity), text);
    }
    add("templates/page.yaml", Template::default().page(bundles, release));
    let values = json!({
        "affinity": {},
        "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
        "imagePullSecrets": [],
        "keepResourceDefinitions": true,
        "metrics": {
            "service": {"enabled": false},
            "serviceMonitor": {"enabled": false, "interval": "30s", "labels": {}},
        },
        "nodeSelector": {},
        "packages": packages,
        "page": {
            "enabled": false,
            "extraArgs": [],
            "extraVolumeMounts": [],
            "extraVolumes": [],
            "podAnnotations": {},
            "podLabels": {},
            "replicas": 1,
        },
        "podDisruptionBudget": {"enabled": false},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "tolerations": tolerations(bundles, release),
        "variables": variables,
    });
    add("values.yaml", format!("{VALUES}{}", yaml::document(&values)));
    files
}

const VALUES: &str = "\
# affinity, nodeSelector, resources, tolerations: of every manager's Pod.
# image: the manager's image; every package runs the same.
# imagePullSecrets: names of secrets to pull it with, as a Pod has them.
# keepResourceDefinitions: leave custom resource definitions, and so every object of them, when the chart is uninstalled.
# metrics: a Service for /metrics of each manager, and a ServiceMonitor for the Prometheus operator with the Service.
# packages: which packages are installed; those that are not enabled here are nothing that the others need.
#   Each has a namespace and a Deployment of its own, with further arguments,
#   environment, volumes, labels and annotations of its Pods, and annotations of its service account
#   (azure.workload.identity/client-id for the workload-identity webhook).
# page: the page of the fleet, in the namespace of the release, behind the tokens of those who look at it; it has no right of
#   its own. Bind the ClusterRole slipway-view to those who may look. With --tls-cert-dir among its arguments, and a volume
#   for that folder, it has a certificate of yours.
# podDisruptionBudget: keep one manager of each package when nodes are drained; with more than one replica.
# variables: what clusterctl reads from its configuration under the same names; *_LOG_LEVEL is the verbosity.
";

/// Of a container, with the values that add to them.
const FIELDS: [(&str, &str); 3] = [
    ("args", "extraArgs"),
    ("env", "extraEnv"),
    ("volumeMounts", "extraVolumeMounts"),
];
const PAGE_FIELDS: [(&str, &str); 2] = [("args", "extraArgs"), ("volumeMounts", "extraVolumeMounts")];

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
    /// In place of the whole line: further items of a list, or entries of a map, if there are any.
    Further(String),
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
            match object["kind"].as_str() {
                Some("Deployment") => self.deployment(&mut object, bundle),
                Some("ServiceAccount") => {
                    object["metadata"]["annotations"] =
                        self.mark(Action::Block(of_package(bundle, "serviceAccount.annotations")));
                }
                _ => {}
            }
            let mut rendered = yaml::document(&object);
            if is_definition {
                rendered = keep(&rendered, object["metadata"]["annotations"].is_object());
            }
            text.push_str("---\n");
            text.push_str(&self.fill(&rendered));
        }
        if !bundle.has_hooks {
            let budget = deployment::disruption_budget(bundle);
            text.push_str(&self.optional(".Values.podDisruptionBudget.enabled", bundle, budget));
        }
        if bundle.names.is_none() {
            text.push_str(&self.optional(
                "or .Values.metrics.service.enabled .Values.metrics.serviceMonitor.enabled",
                bundle,
                deployment::metrics_service(bundle),
            ));
        }
        let mut monitor = deployment::service_monitor(bundle);
        monitor["spec"]["endpoints"][0]["interval"] = self.mark(Action::Value(
            ".Values.metrics.serviceMonitor.interval | quote".to_owned(),
        ));
        self.further_entry(
            &mut monitor["metadata"]["labels"],
            ".Values.metrics.serviceMonitor.labels".to_owned(),
        );
        text.push_str(&self.optional(".Values.metrics.serviceMonitor.enabled", bundle, monitor));
        text.push_str("{{- end }}\n");
        text
    }

    /// An object that is there if a value says so.
    fn optional(&mut self, condition: &str, bundle: &Bundle, mut object: Value) -> String {
        object["metadata"]["labels"][PROVIDER_LABEL] = json!(bundle.identity);
        let rendered = self.fill(&yaml::document(&object));
        format!("{{{{- if {condition} }}}}\n---\n{rendered}{{{{- end }}}}\n")
    }

    fn further_item(&mut self, list: &mut Value, expression: String) {
        let mark = self.mark(Action::Further(expression));
        match list {
            Value::Array(items) => items.push(mark),
            _ => *list = json!([mark]),
        }
    }

    fn further_entry(&mut self, map: &mut Value, expression: String) {
        if let Value::String(mark) = self.mark(Action::Further(expression)) {
            map[mark] = json!("");
        }
    }

    /// The page, if it is asked for.
    fn page(&mut self, bundles: &[Bundle], release: &Release) -> String {
        let mut text = "{{- if .Values.page.enabled }}\n".to_owned();
        let namespace = self.mark(Action::Text(".Release.Namespace".to_owned()));
        let mut objects = vec![page::role(bundles)];
        objects.extend(page::objects(release, namespace.as_str().unwrap_or_default()));
        for mut object in objects {
            if object["kind"] == "Deployment" {
                self.pods(&mut object, |value| format!(".Values.page.{value}"), &PAGE_FIELDS);
            }
            text.push_str("---\n");
            text.push_str(&self.fill(&yaml::document(&object)));
        }
        text.push_str("{{- end }}\n");
        text
    }

    fn deployment(&mut self, object: &mut Value, bundle: &Bundle) {
        self.pods(object, |value| of_package(bundle, value), &FIELDS);
    }

    /// What a user sets of the Pods of a Deployment.
    fn pods(&mut self, object: &mut Value, of: impl Fn(&str) -> String, fields: &[(&str, &str)]) {
        object["spec"]["replicas"] = self.mark(Action::Value(of("replicas")));
        let metadata = &mut object["spec"]["template"]["metadata"];
        metadata["annotations"] = self.mark(Action::Block(of("podAnnotations")));
        self.further_entry(&mut metadata["labels"], of("podLabels"));
        let pod = &mut object["spec"]["template"]["spec"];
        pod["affinity"] = self.mark(Action::Block(".Values.affinity".to_owned()));
        pod["tolerations"] = self.mark(Action::Block(".Values.tolerations".to_owned()));
        self.further_item(&mut pod["volumes"], of("extraVolumes"));
        pod["nodeSelector"] = self.mark(Action::Block(".Values.nodeSelector".to_owned()));
        pod["imagePullSecrets"] = self.mark(Action::Block(".Values.imagePullSecrets".to_owned()));
        for container in pod["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = self.mark(Action::Value(
                "printf \"%s:%s\" .Values.image.repository .Values.image.tag | quote".to_owned(),
            ));
            container["imagePullPolicy"] = self.mark(Action::Value(".Values.image.pullPolicy".to_owned()));
            container["resources"] = self.mark(Action::Block(".Values.resources".to_owned()));
            for (field, value) in fields {
                self.further_item(&mut container[*field], of(value));
            }
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
                Action::Further(action) => {
                    let indentation = line.len() - line.trim_start_matches(' ').len();
                    format!(
                        "{{{{- with {action} }}}}{{{{- toYaml . | nindent {indentation} }}}}{{{{- end }}}}"
                    )
                }
            };
        }
        line
    }
}

/// A value of one package.
fn of_package(bundle: &Bundle, value: &str) -> String {
    format!("(index .Values.packages \"{}\").{value}", bundle.identity)
}

/// What every manager's Pod tolerates as clusterctl installs it.
fn tolerations(bundles: &[Bundle], release: &Release) -> Value {
    let objects = bundles.iter().flat_map(|bundle| bundle.objects(release));
    objects
        .filter(|object| object["kind"] == "Deployment")
        .map(|object| object["spec"]["template"]["spec"]["tolerations"].clone())
        .next()
        .unwrap_or_else(|| json!([]))
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
    fn further_items_and_entries_follow_what_is_there() {
        let mut template = Template::default();
        let mut object = json!({"args": ["manager"], "labels": {"a": "b"}});
        template.further_item(&mut object["args"], ".Values.extraArgs".to_owned());
        template.further_entry(&mut object["labels"], ".Values.podLabels".to_owned());
        assert_eq!(
            template.fill(&yaml::document(&object)),
            "args:\n- manager\n{{- with .Values.extraArgs }}{{- toYaml . | nindent 0 }}{{- end }}\n\
             labels:\n  a: b\n{{- with .Values.podLabels }}{{- toYaml . | nindent 2 }}{{- end }}\n"
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
