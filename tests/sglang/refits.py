"""The same story for every way in: before, after a refit, after a failed one (the old tokens), after its repair."""
from support import common


def tell(engine, generated, paths, tokens, via, ranks=1):
    """ranks: of the engine that take part. engine: LocalEngine or HttpEngine serving paths[0]; it serves paths[0] again at the end. generated(): its tokens."""
    import refit
    import refit.sglang

    common.check(f"{via}: before any refit", generated(), tokens[0])
    with refit.Coordinator(2, 1, ranks, stall_timeout_s=10, gate_timeout_s=60, join_timeout_s=90) as coordinator:
        sync = refit.sglang.SGLangWeightSynchronizer(coordinator, [engine])
        trainer = common.Trainer(coordinator.address, paths[0])
        sync.init_communicator()
        trainer.joined()
        trainer.publish(1, paths[1])
        sync.mark_stale()
        report = sync.sync_weights()
        assert not sync.is_stale()
        print(f"   {via}: version {report.version.number}: {report.seconds:.3f} s, generation stood still {list(sync.pause_seconds.values())[0]:.3f} s", flush=True)
        common.check(f"{via}: after a refit", generated(), tokens[1])

        trainer.publish(2, paths[0])
        trainer.kill(1)
        try:
            sync.sync_weights()
            raise AssertionError("a sync without one of its sources succeeded")
        except refit.Error as e:
            print(f"   as it should: {e}", flush=True)
            assert "source:0.1" in str(e), e
        assert sync.is_stale()
        common.check(f"{via}: a trainer rank was killed: the old weights serve", generated(), tokens[1])
        trainer.close()

        trainer = common.Trainer(coordinator.address, paths[0])
        trainer.joined()
        trainer.publish(3, paths[0])
        report = sync.sync_weights()
        common.check(f"{via}: after its repair", generated(), tokens[0])
        trainer.close()
        sync.shutdown()
    return report


def compare(engine, generated, paths, tokens):
    """Beside another synchronizer: equal weights are found equal, others are named, and nothing is installed."""
    import refit
    import refit.sglang

    with refit.Coordinator(2, 1, 1, stall_timeout_s=10, gate_timeout_s=60, join_timeout_s=90) as coordinator:
        sync = refit.sglang.SGLangWeightSynchronizer(coordinator, [engine], compare_only=True)
        trainer = common.Trainer(coordinator.address, paths[0])
        sync.init_communicator()
        trainer.joined()
        trainer.publish(1, paths[0])
        sync.sync_weights()
        print("ok: compare only: equal weights are found equal", flush=True)
        trainer.publish(2, paths[1])
        try:
            sync.sync_weights()
            raise AssertionError("other weights were found equal")
        except refit.Error as e:
            print(f"   as it should: {e}", flush=True)
            assert "parameters differ" in str(e), e
        common.check("compare only: nothing was installed", generated(), tokens[0])
        trainer.close()
        sync.shutdown()
