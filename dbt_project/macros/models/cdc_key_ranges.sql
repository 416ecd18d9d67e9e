{% macro cdc_key_ranges(plan, window, by_attnum) %}
  {% for k in window.key if (cdc_kind(by_attnum[k]) | trim) in ['int', 'bigint'] %}
    {% if loop.first %}
      {% set name = 't.' ~ cdc_quote(by_attnum[k].lake) %}
      {% set numbers = '(select cast(k' ~ (window.key.index(k) + 1) ~ ' as bigint) as k from (' ~ cdc_window_keys(plan, window) ~ '))' %}
      {# As texts: dbt makes floats of numbers, which do not hold every key. #}
      {% set found = cdc_rows("select 's' || min(k), 's' || max(k) from " ~ numbers ~ ' cross join (select min(k) as low, max(k) as high from ' ~ numbers
          ~ ') where k is not null group by least(floor((cast(k as double) - low) * 32 / greatest(cast(high as double) - low, 1)), 31)') %}
      {% set lows, highs, ranges = [], [], [] %}
      {% for low, high in found %}
        {% do lows.append(low[1:] | int) %}{% do highs.append(high[1:] | int) %}
        {% do ranges.append(name ~ ' between ' ~ low[1:] ~ ' and ' ~ high[1:]) %}
      {% endfor %}
      {# Dense keys are one range. #}
      {% do return('true' if not found else '(' ~ ranges | join(' or ') ~ ')' if found | length <= 16
          else name ~ ' between ' ~ (lows | min) ~ ' and ' ~ (highs | max)) %}
    {% endif %}
  {% endfor %}
  {% do return('true') %}
{% endmacro %}
