//! What does a package need?

/// The part of a `Cargo.toml` that says who needs whom.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest<'a> {
    pub package: &'a str,
    /// Packages that the program or library is built with; those of tests and examples are left out.
    pub dependencies: Vec<&'a str>,
}

impl<'a> Manifest<'a> {
    /// Reads the subset of TOML that manifests use; a manifest without a package, as of a workspace, is none.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut manifest = Self::default();
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_end_matches(']');
                if let Some(name) = after_table(section, "dependencies") {
                    manifest.dependencies.push(name);
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
                continue;
            };
            let key = key.trim();
            if section == "package" && key == "name" {
                manifest.package = value.trim().trim_matches('"');
            } else if is_table(section, "dependencies") || is_table(section, "build-dependencies") {
                manifest
                    .dependencies
                    .push(renamed(value).unwrap_or(key.split('.').next().unwrap_or(key)));
            }
        }
        (!manifest.package.is_empty()).then_some(manifest)
    }
}

/// `[dependencies]` and `[target.'cfg(unix)'.dependencies]`.
fn is_table(section: &str, table: &str) -> bool {
    section == table || section.starts_with("target.") && section.ends_with(&format!(".{table}"))
}

/// `[dependencies.NAME]`
fn after_table<'a>(section: &'a str, table: &str) -> Option<&'a str> {
    section.strip_prefix(table)?.strip_prefix('.')
}

/// `{ package = "NAME", ... }`
fn renamed(value: &str) -> Option<&str> {
    let rest = value.split_once("package")?.1.trim_start().strip_prefix('=')?;
    rest.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_name_a_dependency_are_read() {
        let text = r#"
[package]
name = "pointsman-x"
version.workspace = true

[dependencies]
a.workspace = true
b = { workspace = true, features = ["c"] }
# d.workspace = true
e = { package = "f", version = "1" }

[dependencies.g]
version = "1"

[target.'cfg(unix)'.dependencies]
h = "1"

[build-dependencies]
i = "1"

[dev-dependencies]
j.workspace = true
"#;
        let manifest = Manifest::parse(text).expect("it has a package");
        assert_eq!(manifest.package, "pointsman-x");
        assert_eq!(manifest.dependencies, ["a", "b", "f", "g", "h", "i"]);
        assert_eq!(Manifest::parse("[workspace]\nmembers = []\n"), None);
    }
}
