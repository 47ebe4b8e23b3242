using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Threading;
using RtControl.Samples;
using RtControl.Unity;
using UnityEditor;
using UnityEngine;

namespace RtControl.Driver
{
    /// <summary>
    /// `play ENDPOINT SECONDS`: the sample's scene, frame by frame, then what the editor does. `observers ENDPOINT`: a
    /// component with two observers.
    /// </summary>
    internal static class Play
    {
        private static readonly List<object> Acts = new List<object>();
        private static double _longestMs;

        private static int Main(string[] args)
        {
            if (args[0] == "observers") return Observe(args[1]);
            // The editor's script registers itself.
            foreach (Type type in typeof(Play).Assembly.GetTypes())
                if (type.Name == "CloseBeforeReload") RuntimeHelpers.RunClassConstructor(type.TypeHandle);
            var scene = new GameObject().AddComponent<RoverScene>();
            scene.endpoint = args[1];
            Engine.Tell(scene, "Start");
            RtControlClient client = null;
            foreach (GameObject one in Engine.Objects)
                foreach (Component component in one.Components)
                    client = component as RtControlClient ?? client;
            client.Acted += act => Acts.Add((act.Call == null ? "-" : act.Call.Name) + " " + act.Kind);
            Frames(double.Parse(args[2]));
            RtClient core = client.Client;
            RtCounts counts = core == null ? new RtCounts() : core.Counts;
            int before = Acts.Count;
            var watch = Stopwatch.StartNew();
            AssemblyReloadEvents.Reload();
            double closeMs = watch.Elapsed.TotalMilliseconds;
            bool closed = client.Client == null && (core == null || core.Ended != null);
            object last = Acts.Count > before ? Acts[Acts.Count - 1] : null;
            EditorApplication.Quit();
            // As if the user continued to play: enabled again, with a new session.
            client.enabled = false;
            client.enabled = true;
            bool anew = client.Client != null;
            Frames(1.5);
            anew = anew && client.Client != null && client.Client.Connected;
            Engine.Frame("OnDestroy");
            Flight.Tell("acts", Acts.Count, "executed", counts.Executed, "fresh", counts.Fresh, "failed", counts.Failed,
                "refused", counts.Refused, "closed", closed, "close_ms", closeMs, "last", last, "anew", anew,
                "longest_update_ms", _longestMs, "said", UnityEngine.Debug.Said);
            return 0;
        }

        private static void Frames(double seconds)
        {
            long endNs = MonotonicClock.NowNs + (long)(seconds * 1e9);
            var watch = new Stopwatch();
            while (MonotonicClock.NowNs < endNs)
            {
                watch.Restart();
                Engine.Frame("Update");
                // The first frames compile.
                if (Acts.Count > 3) _longestMs = Math.Max(_longestMs, watch.Elapsed.TotalMilliseconds);
                Thread.Sleep(15);
            }
        }

        private static int Observe(string endpoint)
        {
            var player = new GameObject();
            player.SetActive(false);
            player.AddComponent<Ears>();
            player.AddComponent<Eyes>();
            var client = player.AddComponent<RtControlClient>();
            client.Endpoint = endpoint;
            client.Instruction = "Look.";
            FieldInfo tools = typeof(RtControlClient).GetField("toolsOf", BindingFlags.Instance | BindingFlags.NonPublic);
            object all = tools.GetValue(client);
            tools.SetValue(client, new MonoBehaviour[] { null });
            player.SetActive(true);
            bool refused = !client.enabled;
            tools.SetValue(client, all);
            client.enabled = true;
            Frames(1.5);
            MethodInfo pause = typeof(RtControlClient).GetMethod("OnApplicationPause", BindingFlags.Instance | BindingFlags.NonPublic);
            // Unity also passes `false` when the game starts.
            pause.Invoke(client, new object[] { false });
            client.Acted += act => Acts.Add(act.Kind.ToString());
            Ears.Stuck = 3;
            pause.Invoke(client, new object[] { true });
            bool closed = client.Client == null;
            pause.Invoke(client, new object[] { false });
            bool anew = client.Client != null;
            pause.Invoke(client, new object[] { true });
            bool stopped = Ears.Stuck < 0;
            client.enabled = false;
            pause.Invoke(client, new object[] { false });
            bool stays = client.Client == null;
            Flight.Tell("closed", closed, "stopped", stopped, "acts", Acts, "anew", anew, "stays", stays, "refused", refused, "slow_ns", Eyes.LookedNs, "said", UnityEngine.Debug.Said);
            return 0;
        }

        private sealed class Ears : MonoBehaviour, IRtObserver
        {
            public static int Stuck;

            [RtTool("Stand still."), RtSafe]
            private void Stop()
            {
                if (--Stuck >= 0) throw new InvalidOperationException("It is stuck.");
            }

            public string Observe()
            {
                return "a noise";
            }
        }

        private sealed class Eyes : MonoBehaviour, IRtObserver
        {
            public static long LookedNs;

            public string Observe()
            {
                LookedNs = MonotonicClock.NowNs;
                Thread.Sleep(5);
                return "a shadow";
            }
        }
    }
}
