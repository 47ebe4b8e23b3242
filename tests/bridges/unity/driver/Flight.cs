using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.Threading;

namespace RtControl.Driver
{
    /// <summary>
    /// A game without an engine: a frame loop that observes and pumps. Prints executed calls as JSON lines, reads
    /// commands as lines: reset, reset nan, instruct WORDS, long CHARACTERS or control CHARACTERS (an instruction), array, big BYTES, stall MS, stats, close;
    /// rate HZ (of observations, 0: none), nan, text (what they are), stuck TIMES (safe calls throw so often). Ends after `seconds`, or once its trouble has the words `until`.
    /// </summary>
    internal sealed class Flight
    {
        private readonly Dictionary<string, string> _given;
        private readonly Queue<string> _commands = new Queue<string>();
        private readonly List<double> _ageMs = new List<double>(), _latencyMs = new List<double>(), _mainMs = new List<double>();
        private readonly RtToolSet _tools;
        private readonly double _ttlMs;
        private double _oldestMs;
        private long _tooOld, _frames, _stuck;
        private double _rate;
        private bool _nan;
        private string _trouble; // in this frame

        public Flight(Dictionary<string, string> given)
        {
            _given = given;
            _ttlMs = Number("ttl-ms", 500);
            _rate = Number("hz", 16);
            _tools = new RtToolSet(given.ContainsKey("wheels") ? (object)new Wheels() : given.ContainsKey("crane") ? (object)new Crane() : new Rover());
        }

        public int Run()
        {
            var options = new RtOptions
            {
                Endpoint = _given["endpoint"], Tools = _tools.Definitions, SafeCalls = _tools.SafeCalls,
                Instruction = _given.ContainsKey("wheels") ? "Drive forward." : "Follow the road.", Hz = Number("hz", 16),
                TtlMs = _ttlMs, Persist = _given.ContainsKey("persist"),
            };
            new Thread(ReadCommands) { IsBackground = true }.Start();
            var client = new RtClient(options, Execute);
            bool connected = false, closing = false;
            long nextNs = 0, fresh = 0;
            long endNs = MonotonicClock.NowNs + (long)(Number("seconds", 3600) * 1e9);
            while (!closing && MonotonicClock.NowNs < endNs)
            {
                long nowNs = MonotonicClock.NowNs;
                bool looks = _rate > 0 && nowNs >= nextNs;
                if (looks) nextNs = Look(client, nextNs, nowNs);
                // The time that the package takes from a frame in which there is work.
                if (client.Pump() || looks) _mainMs.Add((MonotonicClock.NowNs - nowNs) / 1e6);
                RtCounts counts = client.Counts;
                if (counts.Fresh > fresh) _latencyMs.Add(counts.LatencyMs);
                fresh = counts.Fresh;
                if (client.Connected != connected)
                {
                    connected = !connected;
                    Tell("event", connected ? "connected" : "lost", "session", Token(client), "at_ms", nowNs / 1e6);
                }
                _trouble = client.Trouble;
                closing = Obey(client, Command()) || _given.ContainsKey("until") && (_trouble ?? "").Contains(_given["until"]);
                _frames++;
                Thread.Sleep((int)Number("frame-ms", 15));
            }
            Tell("event", "stats", "stats", Stats(client));
            var watch = Stopwatch.StartNew();
            client.Dispose();
            double disposeMs = watch.Elapsed.TotalMilliseconds;
            client.Pump();
            client.Dispose();
            Tell("event", "closed", "dispose_ms", disposeMs, "in_force", client.InForce.ToString().ToLowerInvariant());
            return 0;
        }

        /// <summary>Observes as often as is due in a frame; returns when the next observation is due.</summary>
        private long Look(RtClient client, long nextNs, long nowNs)
        {
            var periodNs = (long)(1e9 / _rate);
            var times = _rate > 100 ? (int)Math.Min(Math.Max((nowNs - nextNs) / periodNs, 1), 100) : 1;
            for (var i = 0; i < times; i++)
            {
                try
                {
                    if (_nan) client.Observe(new RtMap { { "data", new RtMap { { "left", double.NaN } } } });
                    else client.Observe("left 40 right 10");
                }
                catch (WireException error)
                {
                    Tell("event", "unsent", "why", error.Message, "at_ms", nowNs / 1e6);
                }
            }
            // Like the component, just in time for the server's tick if that is known.
            if (_given.ContainsKey("timed")) return client.NextLookNs() ?? Math.Max(nextNs + periodNs, nowNs);
            return Math.Max(nextNs + times * periodNs, nowNs);
        }

        private string Execute(RtAct act)
        {
            if (act.Kind == RtForce.Safe && _stuck-- > 0)
            {
                Tell("event", "stuck", "name", act.Call == null ? null : act.Call.Name, "attempt", act.Attempt);
                throw new InvalidOperationException("It is stuck.");
            }
            double ageMs = act.StampNs < 0 ? -1 : (MonotonicClock.NowNs - act.StampNs) / 1e6;
            if (act.Kind == RtForce.Call)
            {
                _ageMs.Add(ageMs);
                _oldestMs = Math.Max(_oldestMs, ageMs);
                if (ageMs > _ttlMs) _tooOld++;
            }
            Tell("event", act.Kind == RtForce.Call ? "call" : "safe", "name", act.Call == null ? null : act.Call.Name,
                "cause", act.Cause, "age_ms", ageMs, "at_ms", MonotonicClock.NowNs / 1e6);
            if (_given.ContainsKey("fails") && act.Kind == RtForce.Call) throw new InvalidOperationException("The engine is off.");
            return _tools.Execute(act);
        }

        private bool Obey(RtClient client, string command)
        {
            if (command == null) return false;
            if (command == "close") return true;
            try
            {
                Do(client, command);
            }
            catch (WireException error)
            {
                Tell("event", "unsent", "why", error.Message, "at_ms", MonotonicClock.NowNs / 1e6);
            }
            return false;
        }

        private void Do(RtClient client, string command)
        {
            if (command == "reset nan") client.Reset(new RtMap { { "return", double.NaN } });
            if (command == "array")
            {
                // A buffer that the game continues to use.
                var bytes = new byte[] { 1, 2, 3, 4 };
                var array = new RtMap { { "name", "range" }, { "dtype", "u1" }, { "shape", new[] { 4 } }, { "data", bytes } };
                client.Observe(new RtMap { { "text", "left 40" }, { "arrays", new[] { array } } });
                bytes[0] = 99;
            }
            if (command.StartsWith("big "))
            {
                // An observation of this many bytes.
                var bytes = new byte[int.Parse(command.Substring(4), CultureInfo.InvariantCulture)];
                var array = new RtMap { { "name", "range" }, { "dtype", "u1" }, { "shape", new[] { bytes.Length } }, { "data", bytes } };
                client.Observe(new RtMap { { "arrays", new[] { array } } });
            }
            if (command == "reset") client.Reset(new RtMap { { "return", 1.5 }, { "success", true } });
            if (command == "nan") _nan = true;
            if (command == "text") _nan = false;
            if (command.StartsWith("rate ")) _rate = double.Parse(command.Substring(5), CultureInfo.InvariantCulture);
            if (command == "stats") Tell("event", "stats", "stats", Stats(client));
            if (command.StartsWith("stuck ")) _stuck = long.Parse(command.Substring(6), CultureInfo.InvariantCulture);
            if (command.StartsWith("instruct ")) client.Instruct(command.Substring(9));
            if (command.StartsWith("long ")) client.Instruct(new string('\u20ac', int.Parse(command.Substring(5), CultureInfo.InvariantCulture)));
            if (command.StartsWith("control ")) client.Instruct(new string('\u0001', int.Parse(command.Substring(8), CultureInfo.InvariantCulture)));
            if (command.StartsWith("stall ")) Thread.Sleep(int.Parse(command.Substring(6), CultureInfo.InvariantCulture));
        }

        private RtMap Stats(RtClient client)
        {
            RtCounts c = client.Counts;
            long offsetNs, errorNs;
            bool clock = client.ServerClock(out offsetNs, out errorNs);
            return new RtMap
            {
                { "observed", c.Observed }, { "superseded", c.Superseded }, { "fresh", c.Fresh }, { "held", c.Held },
                { "safe", c.Safe }, { "expired", c.Expired }, { "skipped", c.Skipped }, { "executed", c.Executed },
                { "failed", c.Failed }, { "refused", c.Refused }, { "ignored", c.Ignored }, { "sessions", c.Sessions },
                { "resumed", c.Resumed }, { "reconnects", c.Reconnects }, { "errors", c.Errors },
                { "too_old", _tooOld }, { "oldest_ms", _oldestMs }, { "frames", _frames },
                { "latency_ms", Quantiles(_latencyMs) }, { "age_ms", Quantiles(_ageMs) },
                { "main_thread_ms", Quantiles(_mainMs) },
                { "last_error", client.LastError }, { "last_failure", client.LastFailure }, { "epoch", client.Epoch },
                { "address", client.Address }, { "trouble", _trouble }, { "ended", client.Ended }, { "clock_known", clock }, { "memory_kb", GC.GetTotalMemory(true) / 1024 },
                { "next_ms", client.NextObservationNs(0) == null ? null : (object)((client.NextObservationNs(0) - MonotonicClock.NowNs) / 1e6) },
                { "in_force", client.InForce.ToString().ToLowerInvariant() },
                { "instruction", client.Welcome == null ? null : client.Welcome.Instruction },
            };
        }

        public static RtMap Quantiles(List<double> values)
        {
            var sorted = new List<double>(values);
            sorted.Sort();
            if (sorted.Count == 0) return new RtMap();
            return new RtMap
            {
                { "n", sorted.Count }, { "p50", sorted[sorted.Count / 2] },
                { "p99", sorted[Math.Min(sorted.Count - 1, (int)(0.99 * sorted.Count))] }, { "max", sorted[sorted.Count - 1] },
            };
        }

        private static object Token(RtClient client)
        {
            // The number of sessions, since tests need only see whether the token changes.
            return client.Welcome == null ? 0 : client.Counts.Sessions;
        }

        private string Command()
        {
            lock (_commands) return _commands.Count == 0 ? null : _commands.Dequeue();
        }

        private void ReadCommands()
        {
            string line;
            while ((line = Console.ReadLine()) != null)
                lock (_commands) _commands.Enqueue(line);
        }

        public static void Tell(params object[] pairs)
        {
            var map = new RtMap();
            for (var i = 0; i < pairs.Length; i += 2) map[(string)pairs[i]] = pairs[i + 1];
            Console.WriteLine(Json.Text(map));
            Console.Out.Flush();
        }

        private double Number(string name, double otherwise)
        {
            string text;
            return _given.TryGetValue(name, out text) ? double.Parse(text, CultureInfo.InvariantCulture) : otherwise;
        }
    }
}
