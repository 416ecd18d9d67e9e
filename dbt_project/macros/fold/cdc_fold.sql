{% macro cdc_fold(plan, whole=false) %}
  {% set ctes, results = [], [] %}
  {% set state = {'initial': none} %}
  {% for segment in plan.segments %}
    {% set i = loop.index0 %}
    {% set columns = cdc_or_none(plan.columns if loop.last else segment.cells) %}
    {% if segment.key %}
      {% set facts = cdc_segment_facts(plan, segment, columns) %}
      {% set split = cdc_is_split(segment, facts, state.initial) %}
      {% do ctes.append(cdc_keyed(plan, i, segment, columns, facts, state.initial, split, whole)) %}
      {% if facts.chained %}
        {% do ctes.append(cdc_resolved(plan, i, cdc_links(plan, i, ctes | join(',\n'), columns, facts), columns, facts)) %}
      {% endif %}
      {% do ctes.append(cdc_keyed_versions(plan, i, segment, columns, facts, whole, split)) %}
    {% else %}
      {% do ctes.append(cdc_bag_versions(plan, i, segment, columns, state.initial, whole)) %}
    {% endif %}
    {% if not loop.last %}
      {# Rows that are open here continue in the next segment, as images that are complete at this point. #}
      {% set present = {} %}
      {% for column in columns %}{% do present.update({column.attnum: true}) %}{% endfor %}
      {% set cells = [] %}
      {% for attnum in range(1, (columns | map(attribute='attnum') | max) + 1) %}
        {% do cells.append('s' ~ attnum if attnum in present else 'cast(null as string)') %}
      {% endfor %}
      {% do ctes.append('i' ~ (i + 1) ~ ' as (select cast(array(' ~ cells | join(', ') ~ ') as array<string>) as new, from_lsn as end_lsn from r' ~ i ~ ' where to_lsn is null)') %}
      {% do state.update({'initial': 'i' ~ (i + 1)}) %}
      {% if whole %}
        {% set targets = [] %}
        {% for column in cdc_or_none(plan.columns) %}
          {% do targets.append(('s' ~ column.attnum if column.attnum in present else cdc_missing(column)) ~ ' as s' ~ column.attnum) %}
        {% endfor %}
        {% do results.append('select ' ~ targets | join(', ') ~ ', from_lsn, to_lsn from r' ~ i ~ ' where to_lsn is not null') %}
      {% endif %}
    {% else %}
      {% do results.append('select * from r' ~ i) %}
    {% endif %}
  {% endfor %}
  {% do return('with ' ~ ctes | join(',\n') ~ '\n' ~ results | join('\nunion all\n')) %}
{% endmacro %}
