using System.Globalization;
using System.Net;
using System.Text;

namespace RtControl
{
    /// <summary>What GET /connect answers (docs/protocol.md, section 1) to a client without keys.</summary>
    internal sealed class ConnectAnswer
    {
        private const int MaxBytes = 4096, MaxAddress = 256, MaxDepth = 32, MaxRetryS = 5, KeyLength = 40;
        private const string KeySigns = ".-:+=^!/*?&<>()[]{}@%$#";

        private readonly string _text;
        private int _at;
        private string _address, _key;
        private bool _badKey;

        private ConnectAnswer(string text)
        {
            _text = text;
        }

        /// <summary>Where to connect; null where there is no server now.</summary>
        public string Address { get; private set; }

        /// <summary>Why there is none, for people.</summary>
        public string Why { get; private set; }

        /// <summary>Wait at least so long.</summary>
        public int RetryS { get; private set; }

        public static ConnectAnswer Read(string url, int status, string retryAfter, string body)
        {
            var answer = new ConnectAnswer(body);
            answer.Judge(url, status, retryAfter);
            return answer;
        }

        public static bool IsLoopback(string host)
        {
            IPAddress address;
            return host == "localhost" || IPAddress.TryParse(host, out address) && IPAddress.IsLoopback(address);
        }

        private void Judge(string url, int status, string retryAfter)
        {
            int seconds;
            string host;
            int port;
            if (status != 200)
            {
                Why = url + " answers " + status;
                bool whole = int.TryParse(retryAfter, NumberStyles.None, CultureInfo.InvariantCulture, out seconds);
                RetryS = whole ? System.Math.Min(MaxRetryS, seconds) : 0;
            }
            else if (Encoding.UTF8.GetByteCount(_text) > MaxBytes || !IsObject()) Why = url + " answers no JSON object of " + MaxBytes + " bytes";
            else if (_address == null || _address.Length > MaxAddress || _address.IndexOfAny(" ,;*\\".ToCharArray()) >= 0
                || _address.LastIndexOf('/') != 5 || !ZmtpTransport.TryParse(_address, out host, out port))
                Why = url + " names no address such as tcp://127.0.0.1:5555";
            else if (_badKey || _key != null && !IsKey()) Why = url + " names a server key that is none";
            else if (!IsLoopback(host)) Why = url + " names " + _address + ", and this client has no keys: use a server of this machine";
            else Address = _address;
        }

        private bool IsKey()
        {
            foreach (char one in _key)
                if (!(one < 128 && char.IsLetterOrDigit(one)) && KeySigns.IndexOf(one) < 0) return false;
            return _key.Length == KeyLength;
        }

        private bool IsObject()
        {
            Space();
            if (_at == _text.Length || _text[_at] != '{' || !Value(0)) return false;
            Space();
            return _at == _text.Length;
        }

        private void Space()
        {
            while (_at < _text.Length && " \t\r\n".IndexOf(_text[_at]) >= 0) _at++;
        }

        private bool Take(char one)
        {
            Space();
            if (_at == _text.Length || _text[_at] != one) return false;
            _at++;
            return true;
        }

        private bool Word(string word)
        {
            if (string.CompareOrdinal(_text, _at, word, 0, word.Length) != 0) return false;
            _at += word.Length;
            return true;
        }

        private bool Value(int depth)
        {
            Space();
            if (_at == _text.Length || depth > MaxDepth) return false;
            if (_text[_at] == '"') return Text() != null;
            if (Take('{')) return Members(depth);
            if (Take('['))
            {
                if (Take(']')) return true;
                do
                    if (!Value(depth + 1)) return false;
                while (Take(','));
                return Take(']');
            }
            return Word("null") || Word("true") || Word("false") || Number();
        }

        private bool Members(int depth)
        {
            if (Take('}')) return true;
            do
            {
                Space();
                string key = Text(), text = null;
                if (key == null || !Take(':')) return false;
                Space();
                bool isText = _at < _text.Length && _text[_at] == '"', isNull = _at < _text.Length && _text[_at] == 'n';
                if (isText) text = Text();
                if (isText ? text == null : !Value(depth + 1)) return false;
                if (depth > 0) continue;
                if (key == "address") _address = text;
                if (key == "server_key") _key = text;
                if (key == "server_key") _badKey = !isText && !isNull;
            } while (Take(','));
            return Take('}');
        }

        private string Text()
        {
            var text = new StringBuilder();
            if (_at == _text.Length || _text[_at] != '"') return null;
            for (_at++; _at < _text.Length && _text[_at] != '"'; _at++)
            {
                if (_text[_at] < ' ') return null;
                bool escaped = _text[_at] == '\\';
                if (escaped && (++_at == _text.Length || "\"\\/bfnrtu".IndexOf(_text[_at]) < 0)) return null;
                // No address and no key has an escaped character, but for the slash: a backslash stands for the others.
                text.Append(escaped && _text[_at] != '/' ? '\\' : _text[_at]);
            }
            return _at++ < _text.Length ? text.ToString() : null;
        }

        private bool Number()
        {
            int begin = _at;
            double ignored;
            while (_at < _text.Length && "+-.0123456789eE".IndexOf(_text[_at]) >= 0) _at++;
            const NumberStyles styles = NumberStyles.AllowLeadingSign | NumberStyles.AllowDecimalPoint | NumberStyles.AllowExponent;
            return double.TryParse(_text.Substring(begin, _at - begin), styles, CultureInfo.InvariantCulture, out ignored);
        }
    }
}
