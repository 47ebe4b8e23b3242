"""Which tests belong to the integration tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.processes import PATH

pytest_plugins = ["pytester"]
PLUGIN = ("-p", "tests.helpers.tiers", "-p", "no:cacheprovider", "-W", "ignore")


@pytest.mark.integration
def test_default_tier_refuses_hidden_sleep(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    pytester.makepyfile(
        """
        import time as clock

        def waits():
            try:
                getattr(clock, "sleep")(0.001)
            except RuntimeError:
                pass

        def test_hidden():
            waits()

        def test_clean():
            pass
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*A test of the default tier used time.sleep*"])


def test_named_files_run_completely_except_nightly_tests(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntestpaths = .\nmarkers =\n    integration\n    slow\n    realtime\n    serial")
    path = pytester.makepyfile(
        """
        import pytest

        def test_pure():
            pass

        @pytest.mark.integration
        def test_real():
            pass

        @pytest.mark.slow
        def test_long():
            pass
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1, deselected=2)
    pytester.runpytest_inprocess(*PLUGIN, Path(path).name).assert_outcomes(passed=2, deselected=1)
    pytester.runpytest_inprocess(*PLUGIN, "-m", "integration").assert_outcomes(passed=1, deselected=2)
