using System;

namespace RtControl
{
    /// <summary>A message that breaks the protocol, with the code and field of docs/protocol.md, section 9.</summary>
    public sealed class WireException : Exception
    {
        public const string Malformed = "malformed";
        public const string TooLarge = "too_large";
        public const string Invalid = "invalid";
        public const string Version = "version";

        private string _field;

        public WireException(string code, string field, string what) : base(what)
        {
            Code = code;
            _field = field;
        }

        public string Code { get; private set; }

        /// <summary>Path of the field to blame, such as <c>arrays[0].part</c>; null where there is none.</summary>
        public string Field
        {
            get { return _field; }
        }

        public override string Message
        {
            get { return (_field == null ? "" : _field + ": ") + base.Message; }
        }

        /// <summary>Prefixes the path while a nested value's error travels outwards.</summary>
        internal void Within(string key)
        {
            if (_field == null) _field = key;
            else _field = key + (_field.StartsWith("[", StringComparison.Ordinal) ? "" : ".") + _field;
        }
    }
}
