//! Both runtimes behind the seam do the same, each on a node of its own. They need root; the one with images needs
//! containerd, runc, the usual CNI plugins and a static busybox.

mod exec;
mod life;
mod place;
mod recovery;
mod streams;
mod usage;

/// A test for each runtime.
#[macro_export]
macro_rules! for_both {
    ($($name:ident),* $(,)?) => {
        mod processes {
            $(#[tokio::test]
            async fn $name() {
                pointsman_testkit::require_netns!();
                super::$name($crate::place::Place::of_processes().await).await;
            })*
        }
        mod containers {
            $(#[tokio::test]
            async fn $name() {
                pointsman_testkit::require_netns!();
                super::$name($crate::place::Place::of_containers().await).await;
            })*
        }
    };
}
