using System.Collections.Generic;
using RtControl.Unity;
using UnityEditor;

namespace RtControl.Editor
{
    /// <summary>The component's inspector: its fields, and in Play mode what is in force, what is missed and why.</summary>
    [CustomEditor(typeof(RtControlClient))]
    internal sealed class RtControlClientEditor : UnityEditor.Editor
    {
        public override void OnInspectorGUI()
        {
            DrawDefaultInspector();
            RtClient client = ((RtControlClient)target).Client;
            if (client == null) return;
            EditorGUILayout.Space();
            RtFigures figures = client.Figures;
            foreach (KeyValuePair<string, string> line in figures.Lines())
                if (line.Key != "Trouble") EditorGUILayout.LabelField(line.Key, line.Value);
            if (figures.Trouble != null) EditorGUILayout.HelpBox(figures.Trouble, figures.Ended ? MessageType.Error : MessageType.Warning);
        }

        // The figures change all the time while it plays.
        public override bool RequiresConstantRepaint()
        {
            return ((RtControlClient)target).Client != null;
        }
    }
}
