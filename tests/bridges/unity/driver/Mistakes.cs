using System.Collections;
using System.Collections.Generic;
using System.Threading.Tasks;

namespace RtControl.Driver
{
    /// <summary>Wrong tools, as a person might write them without reading the manual, by name.</summary>
    internal static class Mistakes
    {
        public static object Make(string name)
        {
            switch (name)
            {
                case "static": return new Static();
                case "override": return new Derived();
                case "coroutine": return new Coroutine();
                case "safe_coroutine": return new SafeCoroutine();
                case "task": return new Later();
                case "parameters": return new Parameters();
                case "members": return new Members();
                case "fraction": return new Fraction();
                case "backwards": return new Backwards();
                default: return null;
            }
        }

        private sealed class Static
        {
            [RtTool] private static void Wave() { }
        }

        private class Parent
        {
            [RtTool("Turn.")] protected virtual void Turn() { }
        }

        private sealed class Derived : Parent
        {
            protected override void Turn() { }
        }

        private sealed class Coroutine
        {
            [RtTool] private IEnumerator Dash() { yield return null; }
        }

        private sealed class SafeCoroutine
        {
            [RtSafe] private IEnumerator Stop() { yield return null; }
        }

        private sealed class Later
        {
            [RtTool] private Task<int> Dash() { return Task.FromResult(1); }
        }

        private sealed class Parameters
        {
            [RtTool] private void Move(int topSpeed, int TopSpeed) { }
        }

        private enum Side { FarLeft, farLeft }

        private sealed class Members
        {
            [RtTool] private void Move(Side side) { }
        }

        private sealed class Fraction
        {
            [RtTool] private void Move([RtRange(0.5, 10)] int speed) { }
        }

        private sealed class Backwards
        {
            [RtTool] private void Move([RtRange(0, 10, -1)] float speed) { }
        }
    }

    /// <summary>Only [RtSafe] without a tool, as in a game whose agent and safe call come from the server.</summary>
    internal sealed class Loner
    {
        public readonly List<object> Log = new List<object>();

        [RtSafe]
        private void Stop()
        {
            Log.Add("stop");
        }
    }
}
