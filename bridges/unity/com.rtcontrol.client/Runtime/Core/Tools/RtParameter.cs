using System;
using System.Collections.Generic;
using System.Globalization;
using System.Reflection;
using System.Text;

namespace RtControl
{
    /// <summary>One parameter of a tool: its schema, and values of calls turned into its type.</summary>
    internal sealed class RtParameter
    {
        private static readonly HashSet<Type> Whole = new HashSet<Type>
        {
            typeof(sbyte), typeof(byte), typeof(short), typeof(ushort), typeof(int), typeof(uint), typeof(long), typeof(ulong),
        };

        private const double Most53 = 9007199254740992.0;

        private readonly ParameterInfo _info;
        private readonly Type _type;
        private readonly RtRangeAttribute _range;
        private readonly string[] _choices;
        private readonly Dictionary<string, object> _members = new Dictionary<string, object>();

        public RtParameter(ParameterInfo info, string tool)
        {
            _info = info;
            _type = info.ParameterType;
            Name = SnakeCase(info.Name);
            _range = Get<RtRangeAttribute>();
            var choices = Get<RtChoicesAttribute>();
            _choices = choices == null ? null : choices.Choices;
            if (_type.IsEnum)
                foreach (object member in Enum.GetValues(_type))
                {
                    string word = SnakeCase(member.ToString());
                    if (_members.ContainsKey(word) && !_members[word].Equals(member))
                        throw new RtToolException(tool + ": two members of " + _type.Name + " are named " + word + ".");
                    _members[word] = member;
                }
            bool real = _type == typeof(float) || _type == typeof(double);
            bool number = real || Whole.Contains(_type);
            if (!number && !_type.IsEnum && _type != typeof(bool) && _type != typeof(string))
                throw new RtToolException(tool + ": " + _type.Name + " " + info.Name + " is none of bool, number, enum, string.");
            if (_range != null && !number) throw new RtToolException(tool + ": RtRange on " + info.Name + ", which is no number.");
            if (_range != null && (!(_range.Min <= _range.Max) || _range.Step < 0))
                throw new RtToolException(tool + ": RtRange on " + info.Name + " is empty.");
            if (_range != null && !real && !(IsWhole(_range.Min) && IsWhole(_range.Max) && IsWhole(_range.Step)))
                throw new RtToolException(tool + ": RtRange on " + info.Name + " needs whole numbers, below 2^53.");
            if (_choices != null && _type != typeof(string))
                throw new RtToolException(tool + ": RtChoices on " + info.Name + ", which is no string.");
        }

        public string Name { get; private set; }

        public bool Optional
        {
            get { return _info.IsOptional; }
        }

        public RtMap Schema()
        {
            var schema = new RtMap();
            if (_type.IsEnum || _choices != null)
            {
                schema["type"] = "string";
                schema["enum"] = new List<object>(_type.IsEnum ? (IEnumerable<object>)_members.Keys : _choices);
            }
            else if (_type == typeof(bool)) schema["type"] = "boolean";
            else if (_type == typeof(string)) schema["type"] = "string";
            else schema["type"] = Whole.Contains(_type) ? "integer" : "number";
            if (_range != null)
            {
                schema["minimum"] = Bound(_range.Min);
                schema["maximum"] = Bound(_range.Max);
                if (_range.Step > 0) schema["multipleOf"] = Bound(_range.Step);
            }
            var about = Get<RtAboutAttribute>();
            if (about != null) schema["description"] = about.Description;
            return schema;
        }

        /// <summary>The argument for the method. Throws RtRefusedException for what the schema does not allow.</summary>
        public object Convert(RtMap arguments)
        {
            object value = arguments.Get(Name);
            if (value == null)
            {
                if (Optional) return _info.DefaultValue;
                throw RtRefusedException.OfUnfit(Name + " is missing");
            }
            object member;
            if (_type.IsEnum && value is string && _members.TryGetValue((string)value, out member)) return member;
            if (_type == typeof(bool) && value is bool) return value;
            if (_type == typeof(string) && value is string && (_choices == null || Array.IndexOf(_choices, (string)value) >= 0))
                return value;
            if (value is long || value is ulong || value is double) return Number(value);
            throw RtRefusedException.OfUnfit(Name + " cannot be " + value);
        }

        private object Number(object value)
        {
            double wide = System.Convert.ToDouble(value, CultureInfo.InvariantCulture);
            bool outside = _range != null && (wide < _range.Min || wide > _range.Max || Between(wide, _range.Step))
                || _type == typeof(float) && Math.Abs(wide) > float.MaxValue;
            bool broken = Whole.Contains(_type) && Math.Floor(wide) != wide;
            if (!outside && !broken && (Whole.Contains(_type) || _type == typeof(float) || _type == typeof(double)))
            {
                try
                {
                    return System.Convert.ChangeType(value, _type, CultureInfo.InvariantCulture);
                }
                catch (OverflowException)
                {
                    // refused below
                }
            }
            throw RtRefusedException.OfUnfit(Name + " cannot be " + System.Convert.ToString(value, CultureInfo.InvariantCulture));
        }

        private object Bound(double value)
        {
            return Whole.Contains(_type) ? (object)(long)value : value;
        }

        // With room for decimals that binary fractions only come near to: 0.3 is three times 0.1.
        private static bool Between(double value, double step)
        {
            return step > 0 && Math.Abs(value / step - Math.Round(value / step)) > 1e-6;
        }

        private static bool IsWhole(double value)
        {
            return Math.Floor(value) == value && Math.Abs(value) <= Most53;
        }

        private T Get<T>() where T : Attribute
        {
            return (T)Attribute.GetCustomAttribute(_info, typeof(T));
        }

        /// <summary>`TopSpeed`, `topSpeed`: `top_speed`; `HTTPPort2`: `http_port2`.</summary>
        public static string SnakeCase(string name)
        {
            var snake = new StringBuilder();
            for (var i = 0; i < name.Length; i++)
            {
                bool before = i > 0 && name[i - 1] != '_' && !char.IsUpper(name[i - 1]);
                bool word = i > 0 && i + 1 < name.Length && char.IsUpper(name[i - 1]) && char.IsLower(name[i + 1]);
                if (char.IsUpper(name[i]) && (before || word)) snake.Append('_');
                snake.Append(char.ToLowerInvariant(name[i]));
            }
            return snake.ToString();
        }
    }
}
