//! Is in the Debian package what its units need, and in the list of parts what is in the program?

use super::deploy;
use serde_json::Value;
use std::process::Command;

fn tool(arguments: &[&str]) -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new("python3")
        .arg(deploy().join("../tools/package.py"))
        .args(arguments)
        .arg("--out")
        .arg(out.path().join("made"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    out
}

#[test]
fn the_debian_package_holds_the_program_and_units_that_it_understands() {
    // Any file will do for the program: what is looked at is what lies around it.
    let program = format!("amd64={}", deploy().join("README.md").display());
    let out = tool(&["deb", "--program", &program]);
    let listing = Command::new("dpkg-deb")
        .arg("-c")
        .arg(out.path().join("made"))
        .output()
        .unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    assert!(listing.contains("-rwxr-xr-x root/root"), "{listing}");
    let mut units = 0;
    for unit in std::fs::read_dir(deploy().join("systemd")).unwrap() {
        let unit = unit.unwrap();
        assert!(listing.contains(unit.file_name().to_str().unwrap()), "{listing}");
        let text = std::fs::read_to_string(unit.path()).unwrap();
        let command = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/pointsman "))
            .unwrap();
        // Variables are filled in by systemd.
        let arguments = command.split(' ').filter(|argument| !argument.starts_with('$'));
        let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args(arguments)
            .arg("--help")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {errors}");
        units += 1;
    }
    assert!(units > 0, "there are no units");
}

#[test]
fn the_list_of_parts_names_each_crate_with_its_licence() {
    let out = tool(&["sbom"]);
    let text = std::fs::read_to_string(out.path().join("made")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let components = document["components"].as_array().unwrap();
    let named = |name: &str| components.iter().find(|component| component["name"] == name);
    let tokio = named("tokio").expect("a part of the program");
    assert_eq!(tokio["licenses"][0]["expression"], "MIT");
    assert!(tokio["purl"].as_str().unwrap().starts_with("pkg:cargo/tokio@"));
    assert!(named("proptest").is_none(), "tests are not shipped");
}
