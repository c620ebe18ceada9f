//! A reconcile never acts on a state from before its own writes, and writes nothing that is there already.

use super::*;

/// The child is given a new name each time, so a reconcile that does not see its own last write makes a second one.
async fn makes_one_child(vessel: Arc<Vessel>, context: Context) -> Answer {
    let maps: Informer<ConfigMap> = context.informers.get(Scope::all());
    let has_child = maps.list().iter().any(|map| {
        map.owner_references()
            .iter()
            .any(|owner| owner.name == vessel.name_any())
    });
    if !has_child {
        let name = format!("{}-{}", vessel.name_any(), context.random.name_suffix(5));
        context.create(&child_of(&vessel, &name)).await?;
    }
    Ok(Next::OnChange)
}

#[tokio::test(start_paused = true)]
async fn a_stale_cache_is_skipped_counted_and_does_not_double_a_create() {
    let trigger = Trigger::new();
    let mut fixture = Fixture::new(makes_one_child);
    fixture.put("a", 1);
    fixture.put("b", 1);
    let held = fixture.server.clone();
    let make = Arc::clone(&fixture.recorder.work);
    fixture.recorder.work = Arc::new(move |vessel, context| {
        // From the first write on, no cache hears of anything.
        held.hold_watches();
        make(vessel, context)
    });
    fixture.start(|controller| controller.owns::<ConfigMap>().triggered_by(&trigger));
    assert_eq!(fixture.calls().await, counts([("a", 1), ("b", 1)]));
    for _ in 0..5 {
        trigger.fire(&ObjectKey::namespaced("default", "a"));
        assert_eq!(fixture.calls().await, counts([]), "it is put off");
    }
    assert_eq!(fixture.server.names(MAPS).len(), 2);
    fixture.metric(r#"capi_reconcile_stale_cache_skips_total{controller="vessel",cached_kind="ConfigMap"}"#);
    fixture.server.release_watches();
    assert_eq!(
        fixture.calls().await,
        counts([("a", 1), ("b", 1)]),
        "at once when the cache has caught up"
    );
    assert_eq!(fixture.server.names(MAPS).len(), 2, "one child each");
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_gone_again_does_not_stop_its_owner() {
    let mut fixture = Fixture::new(makes_one_child);
    fixture.start(Controller::owns::<ConfigMap>);
    sleep(Duration::from_secs(1)).await;
    fixture.put("a", 1);
    sleep(Duration::from_millis(10)).await;
    let child = fixture.server.names(MAPS)[0].clone();
    fixture.server.cut();
    fixture.server.remove(MAPS, Some("default"), &child);
    fixture.server.compact();
    sleep(Duration::from_secs(5)).await;
    let children = fixture.server.names(MAPS);
    assert_eq!(children.len(), 1, "a new one was made");
    assert_ne!(children[0], child);
}

#[tokio::test(start_paused = true)]
async fn deleting_is_seen_too() {
    let deletions = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&deletions);
    let mut fixture = Fixture::new(move |_, context: Context| {
        let count = Arc::clone(&count);
        async move {
            let maps: Informer<ConfigMap> = context.informers.get(Scope::all());
            for map in maps.list() {
                count.fetch_add(1, Ordering::SeqCst);
                context.delete(map.as_ref()).await?;
            }
            Ok(Next::OnChange)
        }
    });
    fixture.put("a", 1);
    let map = json!({"metadata": {"name": "plain", "namespace": "default"}});
    fixture.server.put(MAPS, map);
    let finalized =
        json!({"metadata": {"name": "held", "namespace": "default", "finalizers": ["example.com/hold"]}});
    fixture.server.put(MAPS, finalized);
    let held = fixture.server.clone();
    let delete = Arc::clone(&fixture.recorder.work);
    fixture.recorder.work = Arc::new(move |vessel, context| {
        held.hold_watches();
        delete(vessel, context)
    });
    let trigger = Trigger::new();
    fixture.start(|controller| {
        controller
            .watches::<ConfigMap>(|_, _| vec![])
            .triggered_by(&trigger)
    });
    assert_eq!(fixture.calls().await, counts([("a", 1)]));
    trigger.fire(&ObjectKey::namespaced("default", "a"));
    assert_eq!(fixture.calls().await, counts([]), "neither deletion is seen yet");
    assert_eq!(deletions.load(Ordering::SeqCst), 2);
    fixture.server.release_watches();
    assert_eq!(fixture.calls().await, counts([("a", 1)]));
}

#[tokio::test(start_paused = true)]
async fn status_is_written_only_if_it_differs() {
    let mut fixture = Fixture::new(|vessel, context: Context| async move {
        let status = VesselStatus {
            afloat: vessel.spec.draft > 1,
        };
        context.patch_status(vessel.as_ref(), &status).await?;
        Ok(Next::OnChange)
    });
    fixture.put("a", 2);
    fixture.start(|controller| controller);
    fixture.calls().await;
    let stored = fixture.server.get(VESSELS, Some("default"), "a").unwrap();
    assert_eq!(stored["status"], json!({"afloat": true}));
    fixture.put("a", 3);
    assert_eq!(fixture.calls().await["a"], 1);
    assert_eq!(
        fixture.server.count("PATCH "),
        1,
        "{:?}",
        fixture.server.requests()
    );
}

#[tokio::test(start_paused = true)]
async fn applied_children_are_noted_and_conflicts_are_retried() {
    let mut fixture = Fixture::new(|vessel, context: Context| async move {
        context
            .apply("vessel-controller", &child_of(&vessel, "crew"))
            .await?;
        Ok(Next::OnChange)
    });
    fixture.put("a", 1);
    fixture.server.fail_next(http::Method::PATCH, 409);
    fixture.start(Controller::owns::<ConfigMap>);
    assert!(fixture.calls().await["a"] >= 2);
    let child = fixture.server.get(MAPS, Some("default"), "crew").unwrap();
    assert_eq!(
        (&child["kind"], &child["apiVersion"]),
        (&json!("ConfigMap"), &json!("v1"))
    );
    fixture.metric(r#"slipway_reconcile_errors_total{controller="vessel",class="conflict"} 1"#);
}
