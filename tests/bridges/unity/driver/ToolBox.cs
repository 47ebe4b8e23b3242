using System;
using System.Collections.Generic;
using System.Globalization;

namespace RtControl.Driver
{
    internal enum Direction
    {
        Left,
        FarRight,
    }

    internal class Base
    {
        public readonly List<object> Log = new List<object>();

        [RtTool("Stand still."), RtSafe]
        private void Stop()
        {
            Log.Add("stop");
        }
    }

    /// <summary>One tool of each kind.</summary>
    internal sealed class ToolBox : Base
    {
        [RtTool("Dash.")]
        private string Dash(Direction direction, [RtRange(0, 10), RtAbout("How hard.")] int power, bool andJump = true)
        {
            Log.Add(string.Format(CultureInfo.InvariantCulture, "dash {0} {1} {2}", direction, power, andJump));
            return "dashed";
        }

        [RtTool(Name = "turn")]
        private double Steer([RtRange(-1, 1, 0.25)] float topAngle)
        {
            return topAngle;
        }

        [RtTool]
        private float Zoom(float factor)
        {
            return factor;
        }

        [RtTool]
        private void Say([RtChoices("hello", "bye")] string word, string anything = null)
        {
            if (word == "bye") throw new InvalidOperationException("I stay.");
            throw new RtRefusedException("I do not talk.");
        }
    }

    /// <summary>The tools of the live tests.</summary>
    internal sealed class Rover
    {
        [RtTool("Turn the wheel.")]
        private void Steer([RtRange(-30, 30, 10)] int angle)
        {
        }

        [RtTool("Stand still."), RtSafe]
        private void Stop()
        {
        }
    }

    /// <summary>Two actuators, each with a safe call.</summary>
    internal sealed class Crane
    {
        [RtTool("Turn the wheel.")]
        private void Steer([RtRange(-30, 30, 10)] int angle)
        {
        }

        [RtTool("Hold the load."), RtSafe]
        private void Hold()
        {
        }

        [RtTool("Stand still."), RtSafe]
        private void Stop()
        {
        }
    }

    internal enum Turn
    {
        Left,
        Straight,
        Right,
    }

    /// <summary>The tools of the fault tests: the bundled model, which was not trained on them, always steers.</summary>
    internal sealed class Wheels
    {
        [RtTool("Turn.")]
        private void Steer(Turn turn)
        {
        }

        [RtTool("Turn the motors off."), RtSafe]
        private void ShutDown()
        {
        }
    }
}
