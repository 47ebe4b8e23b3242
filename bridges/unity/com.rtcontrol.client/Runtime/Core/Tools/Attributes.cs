using System;

namespace RtControl
{
    /// <summary>
    /// Makes a method a tool that the model may call. `void SetSpeed(int topSpeed)` becomes `set_speed(top_speed)`.
    /// Parameters: bool, whole numbers, float and double, enums (their members as strings, `FarLeft` is `far_left`),
    /// string. One with a default value is optional. What the method returns is told as the result; a coroutine or a
    /// task is none.
    /// </summary>
    [AttributeUsage(AttributeTargets.Method)]
    public sealed class RtToolAttribute : Attribute
    {
        public RtToolAttribute(string description = "")
        {
            Description = description;
        }

        /// <summary>What the model reads about it.</summary>
        public string Description { get; private set; }

        /// <summary>Another name than the method's.</summary>
        public string Name { get; set; }
    }

    /// <summary>
    /// What to do when no call may be in force. On tools without required parameters, one for each actuator: they become
    /// the safe calls that the server knows. On any other method without parameters: executed where there is no safe call.
    /// </summary>
    [AttributeUsage(AttributeTargets.Method)]
    public sealed class RtSafeAttribute : Attribute
    {
    }

    /// <summary>
    /// Bounds of a number, both ends included, and its step (of which the bounds are multiples): calls with few possible
    /// values are decided fast. A call outside of them, or between the steps, is refused, whoever sent it.
    /// </summary>
    [AttributeUsage(AttributeTargets.Parameter)]
    public sealed class RtRangeAttribute : Attribute
    {
        public RtRangeAttribute(double min, double max, double step = 0)
        {
            Min = min;
            Max = max;
            Step = step;
        }

        public double Min { get; private set; }
        public double Max { get; private set; }

        /// <summary>0: none is given.</summary>
        public double Step { get; private set; }
    }

    /// <summary>The strings that a string parameter may be.</summary>
    [AttributeUsage(AttributeTargets.Parameter)]
    public sealed class RtChoicesAttribute : Attribute
    {
        public RtChoicesAttribute(params string[] choices)
        {
            Choices = choices;
        }

        public string[] Choices { get; private set; }
    }

    /// <summary>What the model reads about a parameter.</summary>
    [AttributeUsage(AttributeTargets.Parameter)]
    public sealed class RtAboutAttribute : Attribute
    {
        public RtAboutAttribute(string description)
        {
            Description = description;
        }

        public string Description { get; private set; }
    }

    /// <summary>A method that cannot be a tool: the message names it.</summary>
    public sealed class RtToolException : Exception
    {
        public RtToolException(string what) : base(what)
        {
        }
    }
}
