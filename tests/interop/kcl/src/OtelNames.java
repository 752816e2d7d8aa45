import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Map;
import java.util.Set;

/**
 * For each metric name on stdin a line with its name in OpenTelemetry and whether the library makes it a gauge; then a
 * line for each dimension with its attribute.
 */
public final class OtelNames {
    public static void main(String[] arguments) throws Exception {
        Method transform = Class.forName("software.amazon.kinesis.metrics.OtelMetricNameTransformer")
                .getDeclaredMethod("transformName", String.class);
        transform.setAccessible(true);
        Set<?> gauges = (Set<?>) constant(Set.class);
        BufferedReader names = new BufferedReader(new InputStreamReader(System.in));
        for (String name = names.readLine(); name != null; name = names.readLine()) {
            System.out.println(transform.invoke(null, name) + " " + gauges.contains(name));
        }
        for (Map.Entry<?, ?> attribute : ((Map<?, ?>) constant(Map.class)).entrySet()) {
            System.out.println(attribute.getKey() + " is " + attribute.getValue());
        }
    }

    private static Object constant(Class<?> type) throws Exception {
        Class<?> scope = Class.forName("software.amazon.kinesis.metrics.OtelMetricsScope");
        for (Field field : scope.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && type == field.getType() && !Modifier.isPrivate(field.getModifiers())) {
                field.setAccessible(true);
                return field.get(null);
            }
        }
        throw new IllegalStateException("OtelMetricsScope has no constant of that type");
    }
}
