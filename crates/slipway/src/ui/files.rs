//! The page itself: files as they are in `page/`, built into the program.

/// A file, by its path in the address.
pub struct File {
    pub kind: &'static str,
    pub content: &'static str,
}

macro_rules! script {
    ($name:literal) => {
        File {
            kind: "text/javascript; charset=utf-8",
            content: include_str!(concat!("page/", $name)),
        }
    };
}

pub fn find(path: &str) -> Option<File> {
    Some(match path {
        "/" | "/index.html" => File {
            kind: "text/html; charset=utf-8",
            content: include_str!("page/index.html"),
        },
        "/style.css" => File {
            kind: "text/css; charset=utf-8",
            content: include_str!("page/style.css"),
        },
        "/icon.svg" => File {
            kind: "image/svg+xml",
            content: include_str!("page/icon.svg"),
        },
        "/main.js" => script!("main.js"),
        "/cluster.js" => script!("cluster.js"),
        "/detail.js" => script!("detail.js"),
        "/dom.js" => script!("dom.js"),
        "/events.js" => script!("events.js"),
        "/fleet.js" => script!("fleet.js"),
        "/kinds.js" => script!("kinds.js"),
        "/parts.js" => script!("parts.js"),
        "/source.js" => script!("source.js"),
        "/timeline.js" => script!("timeline.js"),
        "/tree.js" => script!("tree.js"),
        "/why.js" => script!("why.js"),
        "/words.js" => script!("words.js"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_that_is_imported_is_served() {
        let mut to_read = vec!["/main.js".to_owned()];
        let mut read = Vec::new();
        while let Some(path) = to_read.pop() {
            let file = find(&path).unwrap_or_else(|| panic!("{path} is imported and not served"));
            for line in file.content.lines().filter(|line| line.starts_with("import ")) {
                let (_, from) = line
                    .rsplit_once("\"./")
                    .expect("modules are imported from this folder");
                let found = format!("/{}", from.trim_end_matches("\";"));
                if !read.contains(&found) {
                    read.push(found.clone());
                    to_read.push(found);
                }
            }
        }
        assert!(read.len() > 5, "{read:?}");
    }

    #[test]
    fn nothing_makes_markup_of_text_or_asks_another_server() {
        for name in [
            "main", "cluster", "detail", "dom", "events", "fleet", "kinds", "parts", "source", "timeline",
            "tree", "why", "words",
        ] {
            let file = find(&format!("/{name}.js")).expect("a module");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "https://",
                "DOMParser",
            ] {
                assert!(!file.content.contains(word), "{name}.js has {word}");
            }
        }
        let page = find("/").expect("the page").content;
        assert!(!page.contains("style=\"") && !page.contains("onclick") && !page.contains("https://"));
    }
}
