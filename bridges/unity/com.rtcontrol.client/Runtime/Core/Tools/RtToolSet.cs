using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Reflection;

namespace RtControl
{
    /// <summary>
    /// The tools of some objects: their methods marked with [RtTool], as definitions for the hello, and calls turned
    /// into invocations. The only place with reflection: under IL2CPP with managed code stripping mark such methods
    /// with Unity's [Preserve] too, or keep their types in a link.xml.
    /// </summary>
    public sealed class RtToolSet
    {
        private sealed class Tool
        {
            public object Target;
            public MethodInfo Method;
            public readonly List<RtParameter> Parameters = new List<RtParameter>();
        }

        private readonly Dictionary<string, Tool> _tools = new Dictionary<string, Tool>();
        private readonly List<KeyValuePair<object, MethodInfo>> _safe = new List<KeyValuePair<object, MethodInfo>>();

        /// <summary>Throws RtToolException naming the method that cannot be a tool.</summary>
        public RtToolSet(params object[] targets)
        {
            Definitions = new List<object>();
            SafeCalls = new List<RtCall>();
            foreach (object target in targets)
            {
                if (target == null) throw new RtToolException("One of the objects whose methods are to be tools is null.");
                // An override comes before what it overrides, and instead of it.
                var known = new HashSet<MethodInfo>();
                for (Type type = target.GetType(); type != null && type != typeof(object); type = type.BaseType)
                    foreach (MethodInfo method in Declared(type))
                        if (known.Add(method.GetBaseDefinition())) Add(target, method);
            }
        }

        /// <summary>For <see cref="RtOptions.Tools"/>; empty where no method is marked.</summary>
        public List<object> Definitions { get; private set; }

        /// <summary>For <see cref="RtOptions.SafeCalls"/>: the tools that are marked [RtSafe] too.</summary>
        public List<RtCall> SafeCalls { get; private set; }

        /// <summary>
        /// Carries out an act; to be given to RtClient. Returns what the tool returned, in words. Throws
        /// RtRefusedException where the call fits no tool, and whatever the tool throws; where that happens to a safe
        /// call, what else is marked [RtSafe] is carried out before.
        /// </summary>
        public string Execute(RtAct act)
        {
            try
            {
                if (act.Call != null) return Invoke(act.Call);
            }
            catch (Exception) when (act.Kind == RtForce.Safe)
            {
                if (!SafeCalls.Exists(own => own.Name == act.Call.Name))
                    foreach (RtCall own in SafeCalls) Invoke(own);
                RunSafe();
                throw;
            }
            RunSafe();
            return null;
        }

        /// <summary>The same for a call alone.</summary>
        public string Invoke(RtCall call)
        {
            Tool tool;
            if (!_tools.TryGetValue(call.Name, out tool)) throw RtRefusedException.OfUnfit("there is no tool " + call.Name);
            var arguments = new object[tool.Parameters.Count];
            for (var i = 0; i < arguments.Length; i++) arguments[i] = tool.Parameters[i].Convert(call.Arguments);
            object result = Run(tool.Target, tool.Method, arguments);
            return result == null ? null : Convert.ToString(result, CultureInfo.InvariantCulture);
        }

        private void RunSafe()
        {
            foreach (KeyValuePair<object, MethodInfo> safe in _safe) Run(safe.Key, safe.Value, null);
        }

        private void Add(object target, MethodInfo method)
        {
            var mark = (RtToolAttribute)Attribute.GetCustomAttribute(method, typeof(RtToolAttribute));
            bool safe = Attribute.IsDefined(method, typeof(RtSafeAttribute));
            string where = method.DeclaringType.Name + "." + method.Name;
            if ((mark != null || safe) && Later(method.ReturnType))
                throw new RtToolException(where + ": a coroutine or a task would count as done before it has begun. "
                    + "Mark a method that starts it and returns nothing.");
            if (mark == null)
            {
                if (safe && method.GetParameters().Length > 0) throw new RtToolException(where + ": [RtSafe] takes no parameters.");
                if (safe) _safe.Add(new KeyValuePair<object, MethodInfo>(target, method));
                return;
            }
            if (method.IsGenericMethodDefinition) throw new RtToolException(where + ": a generic method cannot be a tool.");
            string name = RtOptions.Blank(mark.Name) ?? RtParameter.SnakeCase(method.Name);
            if (_tools.ContainsKey(name)) throw new RtToolException(where + ": there is a tool " + name + " already.");
            var tool = new Tool { Target = target, Method = method };
            var properties = new RtMap();
            var required = new List<object>();
            foreach (ParameterInfo info in method.GetParameters())
            {
                var parameter = new RtParameter(info, where);
                if (properties.ContainsKey(parameter.Name))
                    throw new RtToolException(where + ": two parameters are named " + parameter.Name + ".");
                tool.Parameters.Add(parameter);
                properties[parameter.Name] = parameter.Schema();
                if (!parameter.Optional) required.Add(parameter.Name);
            }
            _tools[name] = tool;
            Definitions.Add(new RtMap
            {
                { "type", "function" },
                {
                    "function", new RtMap
                    {
                        { "name", name }, { "description", mark.Description },
                        {
                            "parameters", new RtMap
                            {
                                { "type", "object" }, { "properties", properties }, { "required", required },
                            }
                        },
                    }
                },
            });
            if (!safe) return;
            if (required.Count > 0) throw new RtToolException(where + ": [RtSafe] needs a tool without required parameters.");
            SafeCalls.Add(new RtCall(name));
        }

        private static object Run(object target, MethodInfo method, object[] arguments)
        {
            try
            {
                return method.Invoke(target, arguments);
            }
            catch (TargetInvocationException error)
            {
                // What the tool itself threw, so that a refusal of its own is one.
                var refused = error.InnerException as RtRefusedException;
                if (refused != null) throw refused;
                throw new RtToolFailure(error.InnerException);
            }
        }

        private static IEnumerable<MethodInfo> Declared(Type type)
        {
            const BindingFlags flags = BindingFlags.Instance | BindingFlags.Static | BindingFlags.Public | BindingFlags.NonPublic
                | BindingFlags.DeclaredOnly;
            MethodInfo[] methods = type.GetMethods(flags);
            // The order of reflection differs between runtimes; the model shall read the same list in each.
            Array.Sort(methods, (a, b) => string.CompareOrdinal(a.Name, b.Name));
            return methods;
        }

        // Whatever can be awaited: Task, ValueTask, Unity's Awaitable.
        private static bool Later(Type type)
        {
            return typeof(IEnumerator).IsAssignableFrom(type) || type.GetMethod("GetAwaiter", Type.EmptyTypes) != null;
        }

        private sealed class RtToolFailure : Exception
        {
            public RtToolFailure(Exception inner) : base(inner.GetType().Name + ": " + inner.Message, inner)
            {
            }
        }
    }
}
