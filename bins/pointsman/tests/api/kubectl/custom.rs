//! Kinds that come with a definition, and kinds that nobody serves.

use super::{Kubectl, table};

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.lab.test}
spec:
  group: lab.test
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    - {name: Color, type: string, jsonPath: .spec.color, priority: 1}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {replicas: {type: integer, maximum: 9}, color: {type: string}}}
          status: {type: object, properties: {replicas: {type: integer}}}
";

const WIDGET: &str =
    "apiVersion: lab.test/v1\nkind: Widget\nmetadata: {name: w}\nspec: {replicas: 2, color: red}\n";

#[tokio::test]
async fn widgets_have_columns_and_are_scaled() {
    let kubectl = Kubectl::new().await;
    let early = kubectl.fails("create -f -", WIDGET).await;
    let nobody = "no matches for kind \"Widget\" in version \"lab.test/v1\"";
    assert!(early.contains(nobody), "{early}");
    kubectl.run_with("create -f -", DEFINITION).await;
    kubectl
        .run("wait --for=condition=Established crd/widgets.lab.test --timeout=30s")
        .await;
    kubectl.run_with("create -f -", WIDGET).await;
    let shown = table(&kubectl.run("get wd").await);
    assert_eq!(shown[0], ["NAME", "REPLICAS", "AGE"]);
    assert_eq!(shown[1][..2], ["w", "2"]);
    let wide = table(&kubectl.run("get wd -o wide").await);
    assert_eq!((&*wide[0][2], &*wide[1][2]), ("COLOR", "red"));

    kubectl.run("scale widget w --replicas=5").await;
    assert_eq!(kubectl.path("get widget w", "{.spec.replicas}").await, "5");
    let status = r#"{"status":{"replicas":4}}"#;
    let patch = [
        "patch",
        "widget",
        "w",
        "--subresource=status",
        "--type=merge",
        "-p",
        status,
    ];
    kubectl.run_args(&patch, "").await;
    let scale = kubectl.json("get widget w --subresource=scale").await;
    assert_eq!(
        (&scale["kind"], &scale["status"]["replicas"]),
        (&"Scale".into(), &4.into())
    );
    let late = kubectl
        .fails("scale widget w --replicas=4 --current-replicas=3", "")
        .await;
    assert!(late.contains("Expected replicas to be 3"), "{late}");
    let many = kubectl.fails("scale widget w --replicas=10", "").await;
    assert!(many.contains("spec.replicas"), "{many}");

    kubectl.run_with("delete -f -", DEFINITION).await;
    // Has kubectl forget what it knows of the server.
    kubectl.run("api-resources").await;
    let gone = kubectl.fails("create -f -", WIDGET).await;
    assert!(gone.contains(nobody), "{gone}");
}
